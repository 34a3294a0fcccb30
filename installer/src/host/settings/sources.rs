//! The sources of the settings: the process's environment, and the files of the mounted ConfigMap.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};

/// The default mount path of the ConfigMap.
pub const CONFIG: &str = "/etc/gybe";

/// The largest value, in bytes: a ConfigMap has at most 1 MiB (`MaxSecretSize` in Kubernetes' core/v1, which
/// applies to ConfigMaps too).
const LARGEST: u64 = 1 << 20;

/// How often a ConfigMap is read that changes meanwhile; the kubelet updates it about once a minute.
const ATTEMPTS: u32 = 3;

/// Everything from which the settings are parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingsSources {
    /// The environment's variables.
    pub environment: BTreeMap<String, String>,
    /// The ConfigMap's keys and values.
    pub files: BTreeMap<String, String>,
    /// The content of the file that `CNI_NETWORK_CONFIG_FILE` names.
    pub network_config: Option<String>,
}

/// A source that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .path.display())]
pub struct SourceError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl SettingsSources {
    /// Reads the files that the environment names. A missing directory counts as an empty ConfigMap, which is
    /// optional.
    pub fn gather(environment: BTreeMap<String, String>) -> Result<Self, SourceError> {
        let files = config_map(&config_directory(&environment))?;
        Ok(Self { files, ..Self::of_environment(environment)? })
    }

    /// Like `gather`, but with an empty ConfigMap.
    pub fn of_environment(environment: BTreeMap<String, String>) -> Result<Self, SourceError> {
        let named = environment.get("CNI_NETWORK_CONFIG_FILE").filter(|path| !path.is_empty());
        let network_config = named.map(|path| text(Path::new(path))).transpose()?;
        Ok(Self { environment, files: BTreeMap::new(), network_config })
    }
}

/// The mount path of the ConfigMap.
#[must_use]
pub fn config_directory(environment: &BTreeMap<String, String>) -> PathBuf {
    let setting = environment.get("GYBE_CONFIG_DIR").filter(|path| !path.is_empty());
    PathBuf::from(setting.map_or(CONFIG, String::as_str))
}

/// Reads all files of one version of the ConfigMap. The kubelet switches the link `..data` from one directory
/// to the next and then removes the old one, file by file. So all files are read from the present target, and
/// the result is valid only if the link still has that target afterwards.
fn config_map(directory: &Path) -> Result<BTreeMap<String, String>, SourceError> {
    for _ in 0..ATTEMPTS {
        if let Some(files) = whole(directory, current(directory)?.as_ref())? {
            return Ok(files);
        }
    }
    Err(SourceError {
        path: directory.to_owned(),
        source: io::Error::other("its content changes faster than it can be read"),
    })
}

/// Reads the files of one version; none if the link has another target afterwards, also if the reading failed.
fn whole(directory: &Path, held: Option<&OwnedFd>) -> Result<Option<BTreeMap<String, String>>, SourceError> {
    let read = held.map_or_else(|| Ok(BTreeMap::new()), |held| files(directory, held));
    let stays = identity(held, directory)? == identity(current(directory)?.as_ref(), directory)?;
    if stays { read.map(Some) } else { Ok(None) }
}

/// The link's target; the directory itself if there is no link.
fn current(directory: &Path) -> Result<Option<OwnedFd>, SourceError> {
    let opened = match open(&directory.join("..data")) {
        Err(Errno::ENOENT) => open(directory),
        opened => opened,
    };
    match opened {
        Ok(held) => Ok(Some(held)),
        Err(Errno::ENOENT) => Ok(None),
        Err(why) => Err(SourceError { path: directory.to_owned(), source: why.into() }),
    }
}

/// Device and inode of an open directory, which no other directory can have meanwhile.
fn identity(held: Option<&OwnedFd>, directory: &Path) -> Result<Option<(u64, u64)>, SourceError> {
    let unread = |why: Errno| SourceError { path: directory.to_owned(), source: why.into() };
    let stat = held.map(fstat).transpose().map_err(unread)?;
    Ok(stat.map(|stat| (stat.st_dev, stat.st_ino)))
}

fn files(directory: &Path, held: &OwnedFd) -> Result<BTreeMap<String, String>, SourceError> {
    let unread = |name: &str| {
        let path = directory.join(name);
        move |source| SourceError { path, source }
    };
    let mut files = BTreeMap::new();
    let again = held.try_clone().map_err(unread(""))?;
    let mut entries = Dir::from_fd(again).map_err(|why| unread("")(why.into()))?;
    let names: Result<Vec<_>, Errno> =
        entries.iter().map(|entry| entry.map(|it| it.file_name().to_owned())).collect();
    for name in names.map_err(|why| unread("")(why.into()))? {
        // Names that begin with dots are the kubelet's; a name that is not UTF-8 is no key.
        let Some(key) = name.to_str().ok().filter(|name| !name.starts_with('.')) else { continue };
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let file = openat(held, name.as_c_str(), flags, Mode::empty()).map_err(io::Error::from);
        let setting = file.map(File::from).and_then(bounded).map_err(unread(key))?;
        files.extend(setting.map(|setting| (key.to_owned(), setting)));
    }
    Ok(files)
}

fn open(directory: &Path) -> Result<OwnedFd, Errno> {
    nix::fcntl::open(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

fn text(path: &Path) -> Result<String, SourceError> {
    let read = File::open(path).and_then(bounded);
    let unread = |source| SourceError { path: path.to_owned(), source };
    read.map_err(unread)?.ok_or_else(|| unread(io::ErrorKind::IsADirectory.into()))
}

/// Returns none if it is not a regular file.
fn bounded(file: File) -> io::Result<Option<String>> {
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = String::new();
    match file.take(LARGEST + 1).read_to_string(&mut text)? as u64 > LARGEST {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::{TestDir, write_volume};

    #[test]
    fn a_configmap_that_the_kubelet_replaces_while_it_is_read_is_never_read_in_part() {
        let root = TestDir::new("sources");
        let nothing = whole(&root, None);
        write_volume(&root, [("mode", "leave")]).unwrap();
        let held = current(&root).unwrap();
        let before = whole(&root, held.as_ref());
        write_volume(&root, [("mode", "leave")]).unwrap();
        let (removed, again) = (whole(&root, held.as_ref()), config_map(&root));
        let leave = BTreeMap::from([("mode".to_owned(), "leave".to_owned())]);
        assert_eq!((nothing.unwrap(), removed.unwrap()), (None, None));
        assert_eq!((before.unwrap(), again.unwrap()), (Some(leave.clone()), leave));
    }
}
