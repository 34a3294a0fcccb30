//! Facts from a directory of manifests, `<directory>/<namespace>/<name>.json`.

use crate::args::PodRef;
use crate::bounded_read;
use crate::pod::{ManifestError, PodFacts};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No pod is larger: the API server accepts at most 3 MiB, most of it annotations.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Why an existing manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be opened or read, or is not a regular file.
    #[error("{} cannot be read", .path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// It is larger than any pod.
    #[error("{} is larger than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// It is not a pod's manifest.
    #[error("{} is invalid", .path.display())]
    Manifest {
        /// Its path.
        path: PathBuf,
        /// The fault in it.
        source: ManifestError,
    },
}

/// Returns the path of the pod's manifest. The names are Kubernetes names, so the path stays in the directory.
pub(super) fn path(directory: &Path, pod: &PodRef) -> PathBuf {
    directory.join(pod.namespace.as_str()).join(format!("{}.json", pod.name))
}

/// Reads the pod's manifest; `None` when it does not exist.
pub(super) fn read(directory: &Path, pod: &PodRef) -> Result<Option<PodFacts>, DirectoryError> {
    let path = path(directory, pod);
    let (file, length) = match bounded_read::open_file(&path) {
        Ok(opened) => opened,
        // A pod's name may be longer than a file name may be (253 and ".json" against NAME_MAX).
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename) => {
            return Ok(None);
        }
        Err(source) => return Err(DirectoryError::Read { path, source }),
    };
    let bytes = contents(&file, length, &path)?;
    match PodFacts::from_json(&bytes) {
        Ok(facts) => Ok(Some(facts)),
        Err(source) => Err(DirectoryError::Manifest { path, source }),
    }
}

fn contents(file: &File, length: u64, path: &Path) -> Result<Vec<u8>, DirectoryError> {
    let failed = |source| DirectoryError::Read { path: path.to_owned(), source };
    let too_large = || DirectoryError::TooLarge(path.to_owned());
    let capacity = usize::try_from(length.min(MAX_BYTES)).map_err(|_| too_large())?;
    let mut bytes = Vec::with_capacity(capacity + 1);
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(read).is_ok_and(|length| length <= MAX_BYTES) { Ok(bytes) } else { Err(too_large()) }
}
