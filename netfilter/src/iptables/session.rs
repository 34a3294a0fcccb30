//! Reading and writing one network namespace's tables by the programs of one variant.

use super::error::IptablesError;
use super::holding::Holdings;
use super::layout::{FAMILIES, TABLES};
use super::neighbours::{self, judge_legacy, judge_nftables};
use super::programs::{FamilyPrograms, Program, Programs, Variant};
use super::restore::transaction;
use super::run::{Answer, Conditions};
use super::save::{self, Saved};
use crate::nft::chains::chains;
use crate::ruleset::Family;
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// What of ours each family holds.
pub(super) type PerFamily = BTreeMap<Family, Holdings>;

/// Programs of one variant, at work in the network namespace of the calling thread.
pub(super) struct Session<'a> {
    pub variant: Variant,
    pub programs: &'a Programs,
    /// The older variant's programs where there are any: their tables are read before ours are written.
    pub legacy: Option<&'a Programs>,
    pub conditions: Conditions<'a>,
}

impl Session<'_> {
    /// What of ours is there, and what of others is in its place.
    pub(super) fn read(&self, family: Family) -> Result<Saved, IptablesError> {
        let Some(programs) = self.programs.of(family) else { return Ok(Saved::default()) };
        if !self.has_tables(family)? {
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

    /// The same, when nobody else redirects this namespace.
    pub(super) fn ours_alone(&self) -> Result<PerFamily, IptablesError> {
        let only_ours = |family| {
            let saved = self.read(family)?;
            match saved.foreign.into_iter().next() {
                None => Ok((family, saved.ours)),
                Some((stage, chain)) => Err(IptablesError::Foreign { family, table: stage.table(), chain }),
            }
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

    /// Refuses when somebody else redirects this namespace by other means than this variant.
    pub(super) fn is_alone(&self) -> Result<(), IptablesError> {
        judge_nftables(self.variant, &chains().map_err(IptablesError::Neighbours)?)?;
        let Some(legacy) = self.legacy.filter(|_| self.variant == Variant::Nft) else { return Ok(()) };
        let other = Session { variant: Variant::Legacy, programs: legacy, legacy: None, ..*self };
        FAMILIES.into_iter().try_for_each(|family| judge_legacy(family, other.read(family)?))
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

    /// Is there any table to read? The kernel is asked, not a program: that is quicker, and legacy
    /// tables are made by whoever first looks at them (so their names are read from `/proc`, and
    /// `thread-self`, because `/proc/net` is that of the thread group's leader).
    fn has_tables(&self, family: Family) -> Result<bool, IptablesError> {
        let list = match (self.variant, family) {
            (Variant::Nft, _) => {
                return Ok(neighbours::has_tables(family, &chains().map_err(IptablesError::Neighbours)?));
            }
            (Variant::Legacy, Family::V4) => "/proc/thread-self/net/ip_tables_names",
            (Variant::Legacy, Family::V6) => "/proc/thread-self/net/ip6_tables_names",
        };
        match std::fs::read_to_string(list) {
            Ok(names) => Ok(names.lines().any(|name| TABLES.iter().any(|stage| stage.table() == name))),
            // The kernel has no such tables at all. What else may be the matter the program shall say.
            Err(error) => Ok(error.kind() != ErrorKind::NotFound),
        }
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
