//! Reads and writes the tables of one network namespace: with the programs of one variant, or, for reads of
//! iptables-legacy, from the kernel, which is quicker and possible on a node without the programs.

use super::error::IptablesError;
use super::layout::{DEADLINE, TABLES};
use super::programs::{FamilyPrograms, IptablesProgram, IptablesPrograms};
use super::restore::transaction;
use super::rules::{FamilyRules, IptablesRules};
use super::run::{ProgramOutput, RunConditions};
use super::save::{self, SavedRules};
use crate::access::{ListedChain, NamespaceAccess};
use crate::model::ruleset::{Engine, Family};
use crate::xt::legacy;
use std::fs::TryLockError;
use std::time::Duration;

/// Programs of one variant in the network namespace of the calling thread.
pub(super) struct Session<'a> {
    pub engine: Engine,
    pub programs: &'a IptablesPrograms,
    pub conditions: RunConditions<'a>,
    /// Whether the chains of other meshes count as Gybe's, which replaces or removes them.
    pub with_others: bool,
}

impl Session<'_> {
    /// Reads the tables of one family.
    fn read(&self, access: &mut NamespaceAccess, family: Family) -> Result<SavedRules, IptablesError> {
        if self.engine == Engine::Legacy {
            return read_legacy(family);
        }
        let Some(programs) = self.programs.of(family) else { return Ok(SavedRules::default()) };
        let chains = access.chains().map_err(IptablesError::Chains)?.unwrap_or_default();
        if !has_nft_tables(family, &chains) {
            return Ok(SavedRules::default());
        }
        // Reading takes capabilities only. From inside the user namespace the process's files in /proc may not be
        // readable: they belong to the user who was that namespace's root when the network namespace was made.
        let outside = RunConditions { user_namespace: None, ..self.conditions };
        let output = check_status(&programs.save, outside.run(&programs.save, &["-c".to_owned()], "")?, "")?;
        save::parse(&output.stdout)
            .map_err(|source| IptablesError::Unreadable { program: programs.save.path.clone(), source })
    }

    /// Gybe's rules of both families.
    pub(super) fn ours(&self, access: &mut NamespaceAccess) -> Result<IptablesRules, IptablesError> {
        Family::ALL.into_iter().map(|family| Ok((family, self.ours_of(access, family)?))).collect()
    }

    fn ours_of(&self, access: &mut NamespaceAccess, family: Family) -> Result<FamilyRules, IptablesError> {
        let SavedRules { mut ours, others, .. } = self.read(access, family)?;
        if self.with_others {
            ours.extend(others);
        }
        Ok(ours)
    }

    /// Checks that there are programs for every family in `desired`, and nftables in the kernel where the engine
    /// needs it: without it, iptables-nft names only the extensions that it cannot query.
    pub(super) fn can_write(
        &self,
        access: &mut NamespaceAccess,
        desired: &IptablesRules,
    ) -> Result<(), IptablesError> {
        if self.engine == Engine::NfTables && access.chains().map_err(IptablesError::Chains)?.is_none() {
            return Err(IptablesError::NoNftables);
        }
        let mut families = desired.iter().filter(|(_, rules)| !rules.is_empty());
        families.try_for_each(|(family, _)| self.programs_of(*family).map(drop))
    }

    /// Replaces `observed` by `desired`.
    pub(super) fn write(
        &self,
        family: Family,
        observed: &FamilyRules,
        desired: &FamilyRules,
    ) -> Result<(), IptablesError> {
        let Some(text) = transaction(observed, desired) else { return Ok(()) };
        let programs = self.programs_of(family)?;
        let mut arguments = vec!["--noflush".to_owned()];
        if self.engine == Engine::Legacy {
            // Whole seconds; the deadline ends a wait that would outlast it.
            arguments.extend(["-w".to_owned(), self.conditions.time_left().as_secs().max(1).to_string()]);
        }
        let output = self.conditions.run(&programs.restore, &arguments, &text)?;
        check_status(&programs.restore, output, &text).map(drop)
    }

    /// Removes Gybe's rules. Tries both families, even when the first fails.
    pub(super) fn clear(&self, access: &mut NamespaceAccess) -> Result<(), IptablesError> {
        let (observed, nothing) = (self.ours(access)?, FamilyRules::new());
        let removals = observed.iter().map(|(family, rules)| self.write(*family, rules, &nothing));
        removals.collect::<Vec<_>>().into_iter().collect()
    }

    /// Restores the rules of `before`, except those that must not be written back.
    pub(super) fn restore(
        &self,
        access: &mut NamespaceAccess,
        family: Family,
        before: &FamilyRules,
    ) -> Result<(), String> {
        let now = self.ours_of(access, family).map_err(|error| error.to_string())?;
        let (tables, left_out): (FamilyRules, Vec<usize>) = before
            .iter()
            .map(|(stage, table)| {
                let (writable, left_out) = table.writable();
                ((*stage, writable), left_out)
            })
            .unzip();
        self.write(family, &now, &tables).map_err(|error| error.to_string())?;
        match left_out.into_iter().sum() {
            0 => Ok(()),
            count => Err(format!("left out {count} rules that Gybe does not write")),
        }
    }

    fn programs_of(&self, family: Family) -> Result<&FamilyPrograms, IptablesError> {
        let missing = || IptablesError::ProgramMissing { engine: self.engine, family };
        self.programs.of(family).ok_or_else(missing)
    }
}

/// Reports whether the namespace has iptables-nft tables of `family`, so that running the program is worthwhile.
fn has_nft_tables(family: Family, chains: &[ListedChain]) -> bool {
    let is_iptables = |table: &str| TABLES.iter().any(|stage| stage.table() == table);
    chains.iter().any(|chain| chain.family.only() == Some(family) && is_iptables(&chain.table))
}

/// Returns the output of a program that succeeded.
fn check_status(
    program: &IptablesProgram,
    output: ProgramOutput,
    input: &str,
) -> Result<ProgramOutput, IptablesError> {
    if output.status.success() {
        return Ok(output);
    }
    Err(IptablesError::Failed {
        program: program.path.clone(),
        status: output.status,
        rule: rule_at(&output.stderr, input),
        stderr: summary(&output.stderr),
    })
}

/// The comment of the rule in the line of `input` that stderr names ("line 12 failed").
fn rule_at(stderr: &str, input: &str) -> Option<String> {
    let (_, after) = stderr.split_once("line: ").or_else(|| stderr.split_once("line "))?;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    let line = input.lines().nth(digits.parse::<usize>().ok()?.checked_sub(1)?)?;
    let mut words = line.split(' ').skip_while(|word| *word != "--comment");
    words.nth(1).map(str::to_owned)
}

/// The first four informative lines, as one.
fn summary(stderr: &str) -> String {
    let is_informative =
        |line: &&str| !line.is_empty() && !line.starts_with("# Warning") && !line.starts_with("Try `");
    stderr.lines().map(str::trim).filter(is_informative).take(4).collect::<Vec<_>>().join("; ")
}

/// Access under the namespace's lock.
pub(super) fn locked(time: Duration) -> Result<NamespaceAccess, IptablesError> {
    NamespaceAccess::locked(time).map_err(|error| match error {
        TryLockError::WouldBlock => IptablesError::Busy { after: time },
        TryLockError::Error(source) => IptablesError::NoLock(source),
    })
}

/// The rules in the namespace's legacy tables. Where there are no such tables, this reads two files of `/proc`.
pub(crate) fn legacy_rules(access: &NamespaceAccess) -> Result<Vec<(Family, SavedRules)>, IptablesError> {
    let mut names = Family::ALL.into_iter().map(legacy::table_names);
    if names.all(|names| names.is_ok_and(|names| names.is_empty())) {
        return Ok(Vec::new());
    }
    // A backend writes several tables one after the other; a state in between must not be judged.
    let _lock = if access.is_locked() { None } else { Some(locked(DEADLINE)?) };
    Family::ALL.into_iter().map(|family| Ok((family, read_legacy(family)?))).collect()
}

/// The rules of one family.
fn read_legacy(family: Family) -> Result<SavedRules, IptablesError> {
    let names = legacy::table_names(family)?;
    let written = TABLES.into_iter().filter(|stage| names.iter().any(|name| stage.table() == name));
    let tables = written.map(|stage| Ok((stage, legacy::table(family, stage.table())?)));
    Ok(save::of_legacy(&tables.collect::<Result<_, IptablesError>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_with_a_line_number_names_the_rule() {
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
    fn stderr_is_cut_to_its_informative_lines() {
        let stderr = "iptables-nft-restore v1.8.9 (nf_tables): \nline 4: RULE_APPEND failed\n\nTry `x'\n# Warning: y\n";
        assert_eq!(summary(stderr), "iptables-nft-restore v1.8.9 (nf_tables):; line 4: RULE_APPEND failed");
    }
}
