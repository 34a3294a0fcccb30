//! The unpacked programs of one Debian release.

use gybe_netfilter::iptables::{Iptables, Variant};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Debian's suites and the version of iptables in each. The last suite is unstable: its version may be newer.
pub(crate) const VERSIONS: [(&str, &str); 4] =
    [("bullseye", "1.8.7"), ("bookworm", "1.8.9"), ("trixie", "1.8.11"), ("sid", "1.8.13")];

pub(crate) struct Release {
    suite: &'static str,
    pub version: &'static str,
    programs: PathBuf,
}

impl Release {
    pub(crate) fn of(suite: &str) -> Self {
        let (suite, version) = VERSIONS.into_iter().find(|(name, _)| *name == suite).unwrap();
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let programs = target.join("iptables").join(suite).join("programs");
        assert!(programs.is_dir(), "no {}; run integration/iptables/setup.sh", programs.display());
        Self { suite, version, programs }
    }

    pub(crate) fn backend(&self, variant: Variant) -> Iptables {
        Iptables::find_in(variant, std::slice::from_ref(&self.programs))
            .unwrap()
            .with_deadline(Duration::from_secs(120))
    }

    /// What the variant's programs print of both families in the namespace of this thread.
    pub(crate) fn save(&self, variant: Variant) -> String {
        ["iptables", "ip6tables"].map(|family| self.save_of(family, variant)).concat()
    }

    fn save_of(&self, family: &str, variant: Variant) -> String {
        let name = format!("{family}-{}-save", variant.name().trim_start_matches("iptables-"));
        let output = Command::new(self.programs.join(&name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Fails unless `saved` says that the programs of this version printed it.
    pub(crate) fn assert_version(&self, saved: &str) {
        let first = saved.lines().next().unwrap();
        let found = first.split(' ').find_map(|word| word.strip_prefix('v')).unwrap();
        let same = found == self.version;
        assert!(
            same || (self.suite == "sid" && numbers(found) > numbers(self.version)),
            "{}: {first}",
            self.suite
        );
    }
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap()).collect()
}
