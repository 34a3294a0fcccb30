//! Facts from a directory of manifests, `<directory>/<namespace>/<name>.json`.

use super::file;
use crate::args::PodRef;
use crate::pod::{ManifestError, PodFacts};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No pod is larger: the API server takes at most 3 MiB, most of it annotations.
const MOST: u64 = 4 * 1024 * 1024;

/// Why a manifest that is there cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be opened or read, or is no file.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// More than any pod.
    #[error("{} is larger than {MOST} bytes", .0.display())]
    TooLarge(PathBuf),
    /// No pod's manifest.
    #[error("{} is of no use", .path.display())]
    Manifest {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        source: ManifestError,
    },
}

/// Where the pod's manifest would be. The names are Kubernetes names, so they stay inside.
pub(super) fn path(directory: &Path, pod: &PodRef) -> PathBuf {
    directory.join(pod.namespace.as_str()).join(format!("{}.json", pod.name))
}

/// Reads the pod's manifest; `None` when there is none.
pub(super) fn read(directory: &Path, pod: &PodRef) -> Result<Option<PodFacts>, DirectoryError> {
    let path = path(directory, pod);
    let (file, length) = match file::open(&path) {
        Ok(there) => there,
        // A pod's name may be longer than any file's (253 and ".json" against NAME_MAX): then there is none.
        Err(fault) if matches!(fault.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) => {
            return Ok(None);
        }
        Err(source) => return Err(DirectoryError::Read { path, source }),
    };
    let bytes = contents((&file, length), &path)?;
    match PodFacts::from_json(&bytes) {
        Ok(facts) => Ok(Some(facts)),
        Err(source) => Err(DirectoryError::Manifest { path, source }),
    }
}

fn contents((file, length): (&File, u64), path: &Path) -> Result<Vec<u8>, DirectoryError> {
    let failed = |source| DirectoryError::Read { path: path.to_owned(), source };
    let too_large = || DirectoryError::TooLarge(path.to_owned());
    let guess = usize::try_from(length.min(MOST)).map_err(|_| too_large())?;
    let mut bytes = Vec::with_capacity(guess + 1);
    let read = file.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(read).is_ok_and(|length| length <= MOST) { Ok(bytes) } else { Err(too_large()) }
}
