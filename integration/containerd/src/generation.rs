//! Which containerd: where the programs of each generation lie and what they understand; not how
//! they are run.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Trouble;

/// A generation of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// 1.6, as Debian 12 installs it.
    V1_6,
    /// 1.7, as Debian 13 has it.
    V1_7,
    /// The newest 2.x in Debian, with reference plugins that speak CNI 1.1.
    V2,
}

impl Generation {
    /// The prefix under which `usr/bin` and `usr/lib/cni` are found.
    fn prefix(self) -> Result<PathBuf, Trouble> {
        match self {
            Generation::V1_6 => Ok(PathBuf::from("/")),
            Generation::V1_7 => unpacked("1.7"),
            Generation::V2 => unpacked("2.x"),
        }
    }

    /// The directory of `containerd`, `ctr` and the shim.
    pub fn programs(self) -> Result<PathBuf, Trouble> {
        existing(self.prefix()?.join("usr/bin"), "containerd")
    }

    /// The directory of the reference plugins that suit it.
    pub fn reference_plugins(self) -> Result<PathBuf, Trouble> {
        let directory = match self {
            Generation::V1_6 | Generation::V1_7 => PathBuf::from("/usr/lib/cni"),
            Generation::V2 => self.prefix()?.join("usr/lib/cni"),
        };
        existing(directory, "bridge")
    }

    /// The newest CNI version that both this containerd and its reference plugins speak.
    pub fn cni_version(self) -> &'static str {
        match self {
            Generation::V1_6 | Generation::V1_7 => "1.0.0",
            Generation::V2 => "1.1.0",
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Generation::V1_6 => "1.6",
            Generation::V1_7 => "1.7",
            Generation::V2 => "2.x",
        })
    }
}

/// A built program of ours, such as `gybe-cni`: beside the programs of this crate, and a test stands
/// one directory below them.
pub fn program_under_test(name: &str) -> Result<PathBuf, Trouble> {
    let program = std::env::current_exe().map_err(Trouble::file("/proc/self/exe"))?;
    let mut above = program.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let built = above.find(|built| built.is_file());
    built.ok_or_else(|| Trouble::NotBuilt { path: program.with_file_name(name) })
}

/// `setup.sh` unpacks into `runtimes` of the build directory, which is above this very program.
fn unpacked(name: &str) -> Result<PathBuf, Trouble> {
    let program = std::env::current_exe().map_err(Trouble::file("/proc/self/exe"))?;
    let found = program
        .ancestors()
        .map(|above| above.join("runtimes").join(name))
        .find(|directory| directory.is_dir());
    found.ok_or_else(|| Trouble::NotInstalled { path: Path::new("target/runtimes").join(name) })
}

fn existing(directory: PathBuf, program: &str) -> Result<PathBuf, Trouble> {
    let path = directory.join(program);
    if path.is_file() { Ok(directory) } else { Err(Trouble::NotInstalled { path }) }
}
