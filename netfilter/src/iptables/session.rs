//! Reading and writing one network namespace's tables by the programs of one variant.

use super::error::IptablesError;
use super::holding::Holdings;
use super::layout::FAMILIES;
use super::neighbours::{has_nft_tables, read_legacy};
use super::programs::{FamilyPrograms, Program, Programs, Variant};
use super::restore::transaction;
use super::run::{Answer, Conditions};
use super::save::{self, Saved};
use crate::nft::chains::chains;
use crate::presence::Presence;
use crate::ruleset::Family;
use std::collections::BTreeMap;

/// What of ours each family holds.
pub(super) type PerFamily = BTreeMap<Family, Holdings>;

/// Programs of one variant, at work in the network namespace of the calling thread.
pub(super) struct Session<'a> {
    pub variant: Variant,
    pub programs: &'a Programs,
    /// The other variant's programs where there are any.
    pub other: Option<&'a Programs>,
    pub conditions: Conditions<'a>,
}

impl Session<'_> {
    /// What of ours is there, and what of others is in its place.
    pub(super) fn read(&self, family: Family) -> Result<Saved, IptablesError> {
        if self.variant == Variant::Legacy {
            return read_legacy(family);
        }
        let Some(programs) = self.programs.of(family) else { return Ok(Saved::default()) };
        if !has_nft_tables(family, &chains().map_err(IptablesError::Neighbours)?) {
            return Ok(Saved::default());
        }
        // Anybody with capabilities may read; from inside the user namespace /proc may not let us
        // (its files belong to whom that namespace's root was when the network namespace was made).
        let outside = Conditions { user_namespace: None, ..self.conditions };
        let answer = accepted(&programs.save, outside.run(&programs.save, &["-c".to_owned()], "")?, "")?;
        save::parse(&answer.stdout)
            .map_err(|source| IptablesError::Unreadable { program: programs.save.path.clone(), source })
    }

    /// What of ours is there in both families.
    pub(super) fn ours(&self) -> Result<PerFamily, IptablesError> {
        FAMILIES.into_iter().map(|family| Ok((family, self.read(family)?.ours))).collect()
    }

    /// The same, and what the reading has shown beside it.
    pub(super) fn ours_among(&self, presence: &mut Presence) -> Result<PerFamily, IptablesError> {
        let only_ours = |family| {
            let saved = self.read(family)?;
            if self.variant == Variant::Legacy {
                presence.add_legacy(family, saved.found(family));
            }
            Ok((family, saved.ours))
        };
        FAMILIES.into_iter().map(only_ours).collect()
    }

    /// Are there programs for every family that is wanted? Asked before anything is written.
    pub(super) fn can_write(&self, wanted: &PerFamily) -> Result<(), IptablesError> {
        let mut families = wanted.iter().filter(|(_, holdings)| !holdings.is_empty());
        families.try_for_each(|(family, _)| self.programs_of(*family).map(drop))
    }

    /// Makes `wanted` of `found`.
    pub(super) fn write(
        &self,
        family: Family,
        found: &Holdings,
        wanted: &Holdings,
    ) -> Result<(), IptablesError> {
        let Some(text) = transaction(found, wanted) else { return Ok(()) };
        let programs = self.programs_of(family)?;
        let mut arguments = vec!["--noflush".to_owned()];
        if self.variant == Variant::Legacy {
            // Whole seconds; a wait that outlasts the deadline is ended by it.
            arguments.extend(["-w".to_owned(), self.conditions.time_left().as_secs().max(1).to_string()]);
        }
        let answer = self.conditions.run(&programs.restore, &arguments, &text)?;
        accepted(&programs.restore, answer, &text).map(drop)
    }

    /// Takes away what of ours is there. Both families are tried, whatever becomes of the first.
    pub(super) fn clear(&self) -> Result<(), IptablesError> {
        let (found, nothing) = (self.ours()?, Holdings::new());
        let removals = found.iter().map(|(family, holdings)| self.write(*family, holdings, &nothing));
        removals.collect::<Vec<_>>().into_iter().collect()
    }

    /// Who else is at work in this namespace. This variant's own tables it leaves to [`Session::read`].
    pub(super) fn presence(&self) -> Result<Presence, IptablesError> {
        let mut presence = Presence::of_chains(&chains().map_err(IptablesError::Neighbours)?);
        if self.variant == Variant::Nft {
            for family in FAMILIES {
                presence.add_legacy(family, read_legacy(family)?.found(family));
            }
        }
        Ok(presence)
    }

    /// The other variant's programs, at work under the same conditions.
    pub(super) fn other(&self) -> Option<Session<'_>> {
        let programs = self.other?;
        Some(Session {
            variant: self.variant.other(),
            programs,
            other: Some(self.programs),
            conditions: self.conditions,
        })
    }

    /// Makes what is there what was there before, as far as that may be written.
    pub(super) fn put_back(&self, family: Family, before: &Holdings) -> Result<(), String> {
        let now = self.read(family).map_err(|error| error.to_string())?.ours;
        let (tables, left_out): (Holdings, Vec<usize>) = before
            .iter()
            .map(|(stage, holding)| {
                let (writable, left_out) = holding.writable();
                ((*stage, writable), left_out)
            })
            .unzip();
        self.write(family, &now, &tables).map_err(|error| error.to_string())?;
        match left_out.into_iter().sum() {
            0 => Ok(()),
            some => Err(format!("{some} rules that are not of our making were left out")),
        }
    }

    fn programs_of(&self, family: Family) -> Result<&FamilyPrograms, IptablesError> {
        let missing = || IptablesError::ProgramMissing { variant: self.variant.name(), family };
        self.programs.of(family).ok_or_else(missing)
    }
}

/// The answer, when it is not a refusal.
fn accepted(program: &Program, answer: Answer, input: &str) -> Result<Answer, IptablesError> {
    if answer.status.success() {
        return Ok(answer);
    }
    Err(IptablesError::Failed {
        program: program.path.clone(),
        status: answer.status,
        rule: rule_at(&answer.stderr, input),
        stderr: essence(&answer.stderr),
    })
}

/// The rule in the line of `input` that the program complains about ("line 12 failed").
fn rule_at(stderr: &str, input: &str) -> Option<String> {
    let (_, after) = stderr.split_once("line: ").or_else(|| stderr.split_once("line "))?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    let line = input.lines().nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?;
    let mut words = line.split(' ').skip_while(|word| *word != "--comment");
    words.nth(1).map(str::to_owned)
}

/// The lines that say something, as one.
fn essence(stderr: &str) -> String {
    let says = |line: &&str| !line.is_empty() && !line.starts_with("# Warning") && !line.starts_with("Try `");
    stderr.lines().map(str::trim).filter(says).take(4).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_names_the_rule_it_is_about() {
        let input = "*nat\n:GYBE - [0:0]\n-A ISTIO_OUTPUT -m owner --uid-owner 7 -m comment --comment proxy-uid -j RETURN\nCOMMIT\n";
        for (stderr, rule) in [
            ("line 3: RULE_APPEND failed (Invalid argument): rule in chain ISTIO_OUTPUT", Some("proxy-uid")),
            ("x\nError occurred at line: 3\nTry `x' for more", Some("proxy-uid")),
            ("iptables-restore: line 4 failed", None),
            ("iptables-restore: line 40 failed", None),
            ("Segmentation fault", None),
        ] {
            assert_eq!(rule_at(stderr, input).as_deref(), rule, "{stderr}");
        }
    }

    #[test]
    fn a_complaint_is_cut_to_what_it_says() {
        let stderr = "iptables-nft-restore v1.8.9 (nf_tables): \nline 4: RULE_APPEND failed\n\nTry `x'\n# Warning: y\n";
        assert_eq!(essence(stderr), "iptables-nft-restore v1.8.9 (nf_tables):; line 4: RULE_APPEND failed");
    }
}
