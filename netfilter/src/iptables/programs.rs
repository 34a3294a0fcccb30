//! Finds the programs of a variant of iptables by absolute path: no `PATH`, no shell. Each variant writes to one engine
//! of the kernel.

use super::error::IptablesError;
use crate::model::ruleset::{Engine, Family};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

impl Engine {
    /// The variant of iptables that writes to it.
    pub fn iptables(self) -> &'static str {
        match self {
            Self::NfTables => "iptables-nft",
            Self::Legacy => "iptables-legacy",
        }
    }
}

/// One program: its path, and for a multi-call program the name of the applet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IptablesProgram {
    pub path: PathBuf,
    pub applet: Option<&'static str>,
}

/// The programs of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FamilyPrograms {
    pub save: IptablesProgram,
    pub restore: IptablesProgram,
}

/// The programs of one variant. Those for IPv6 may be missing where no policy redirects IPv6.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IptablesPrograms {
    v4: FamilyPrograms,
    v6: Option<FamilyPrograms>,
}

impl IptablesPrograms {
    /// Looks through `directories`, in order.
    pub(super) fn find(engine: Engine, directories: &[PathBuf]) -> Result<Self, IptablesError> {
        let v4 = family_programs(engine, Family::V4, directories)
            .ok_or(IptablesError::ProgramMissing { engine, family: Family::V4 })?;
        Ok(Self { v4, v6: family_programs(engine, Family::V6, directories) })
    }

    /// Those of `family`, if they were found.
    pub(super) fn of(&self, family: Family) -> Option<&FamilyPrograms> {
        match family {
            Family::V4 => Some(&self.v4),
            Family::V6 => self.v6.as_ref(),
        }
    }
}

fn family_programs(engine: Engine, family: Family, directories: &[PathBuf]) -> Option<FamilyPrograms> {
    let [save, restore] = match family {
        Family::V4 => ["iptables-save", "iptables-restore"],
        Family::V6 => ["ip6tables-save", "ip6tables-restore"],
    };
    Some(FamilyPrograms {
        save: program(engine, save, directories)?,
        restore: program(engine, restore, directories)?,
    })
}

/// Finds the variant's program, or the multi-call program. A plain `iptables-restore` may be either variant and is not
/// used: wherever it exists, the multi-call program that it links to is in the same directories.
fn program(engine: Engine, applet: &'static str, directories: &[PathBuf]) -> Option<IptablesProgram> {
    let (infix, multis): (_, &[&str]) = match engine {
        // xtables-multi is iptables 1.4 to 1.6, which had one variant.
        Engine::Legacy => ("tables-legacy-", &["xtables-legacy-multi", "xtables-multi"]),
        Engine::NfTables => ("tables-nft-", &["xtables-nft-multi"]),
    };
    let own_name = executable(directories, &applet.replacen("tables-", infix, 1));
    let own = own_name.map(|path| IptablesProgram { path, applet: None });
    own.or_else(|| {
        let path = multis.iter().find_map(|multi| executable(directories, multi))?;
        Some(IptablesProgram { path, applet: Some(applet) })
    })
}

fn executable(directories: &[PathBuf], name: &str) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Hint;
    use gybe_test_support::TestDir;
    use std::fs::{self, Permissions};

    /// A directory with these programs and a file that is not executable.
    struct Directory(TestDir);

    impl Directory {
        fn with(name: &str, programs: &[&str]) -> Self {
            let path = TestDir::new(name);
            fs::write(path.join("iptables-legacy-save"), "not executable").unwrap();
            for program in programs {
                fs::write(path.join(program), "").unwrap();
                fs::set_permissions(path.join(program), Permissions::from_mode(0o755)).unwrap();
            }
            Self(path)
        }

        fn find(&self, engine: Engine) -> Result<IptablesPrograms, IptablesError> {
            IptablesPrograms::find(engine, &["/nonexistent".into(), self.0.path().to_owned()])
        }
    }

    #[test]
    fn f24_programs_that_are_not_there_are_named() {
        // A plain name may be either variant, so it is no program of any.
        let nothing = Directory::with("nothing", &["iptables-restore", "iptables-save"]);
        for engine in [Engine::Legacy, Engine::NfTables] {
            let error = nothing.find(engine).unwrap_err();
            assert!(error.to_string().contains(engine.iptables()), "{error}");
            assert!(error.hint().unwrap().contains("/usr/sbin"));
        }
    }

    #[test]
    fn the_program_of_many_names_stands_in_for_those_that_are_missing() {
        let multi = Directory::with("multi", &["xtables-legacy-multi", "ip6tables-legacy-restore"]);
        let programs = multi.find(Engine::Legacy).unwrap();
        let v4 = programs.of(Family::V4).unwrap();
        assert_eq!(v4.restore.applet, Some("iptables-restore"));
        assert!(v4.save.path.ends_with("xtables-legacy-multi"));
        assert_eq!(programs.of(Family::V6).unwrap().restore.applet, None);
        assert!(multi.find(Engine::NfTables).is_err());
    }

    #[test]
    fn without_ipv6_programs_there_is_still_ipv4() {
        let v4 = Directory::with("v4", &["iptables-nft-restore", "iptables-nft-save"]);
        assert!(v4.find(Engine::NfTables).unwrap().of(Family::V6).is_none());
    }
}
