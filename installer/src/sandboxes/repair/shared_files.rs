//! Two files in `/run/gybe`: the agent writes the setting for the process that repairs pods, and that process writes
//! its counts for the agent's metrics. The agent enters no namespace, and the other process reads no setting.

use crate::host::settings::RepairMode;
use gybe_plugin::probe_cache::{REPAIR_SETTING, REPAIRS, read_own_file, replace_file};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::{fs, io};

/// The setting `repair`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepairSetting {
    pub(crate) repair: RepairMode,
}

/// What the process that repairs pods has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodRepairs {
    pub(crate) repaired: u64,
    /// Attempts.
    pub(crate) failed: u64,
    /// The sandboxes that it last left in another state than the desired one: they should be redirected and are not, or
    /// that is not known.
    pub(crate) not_redirected: u64,
}

impl RepairSetting {
    /// Reads what the agent wrote; none if it has written nothing yet.
    pub(crate) fn kept_in(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&read_own_file(&directory.join(REPAIR_SETTING))?.0).ok()
    }

    /// Writes it if it changed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn keep_in(self, directory: &Path) -> io::Result<()> {
        if Self::kept_in(directory) == Some(self) {
            return Ok(());
        }
        replace_file(directory, REPAIR_SETTING, &serde_json::to_string(&self)?)
    }
}

impl PodRepairs {
    /// Reads the counts; none where no process repairs pods.
    pub(crate) fn kept_in(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&read_own_file(&directory.join(REPAIRS))?.0).ok()
    }

    /// Writes the counts, or removes the file where no pod is repaired.
    ///
    /// # Errors
    /// If the file cannot be written or removed.
    pub(crate) fn keep_in(counts: Option<Self>, directory: &Path) -> io::Result<()> {
        let Some(counts) = counts else {
            return match fs::remove_file(directory.join(REPAIRS)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
                _ => Ok(()),
            };
        };
        replace_file(directory, REPAIRS, &serde_json::to_string(&counts)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;

    #[test]
    fn both_files_are_read_as_they_were_written_and_damaged_ones_are_ignored() {
        let directory = TestDir::new("repair-files");
        assert_eq!(RepairSetting::kept_in(directory.path()), None);
        for repair in [RepairMode::Off, RepairMode::Repair] {
            RepairSetting { repair }.keep_in(directory.path()).unwrap();
            assert_eq!(RepairSetting::kept_in(directory.path()), Some(RepairSetting { repair }));
        }
        let counts = PodRepairs { repaired: 3, failed: 1, not_redirected: 2 };
        for counts in [Some(counts), None, None] {
            PodRepairs::keep_in(counts, directory.path()).unwrap();
            assert_eq!(PodRepairs::kept_in(directory.path()), counts);
        }
        fs::write(directory.join(REPAIR_SETTING), r#"{"repair":"everything"}"#).unwrap();
        assert_eq!(RepairSetting::kept_in(directory.path()), None);
    }
}
