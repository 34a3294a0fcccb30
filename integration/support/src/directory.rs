//! A directory that lives as long as its test, and volumes in it as the kubelet updates them.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A new, empty directory, deleted with the value. Derefs to its path.
///
/// The path has the test's name, the process id and a number: tests of one process and of several, and a
/// test that makes two, never share one.
#[derive(Debug)]
pub struct TestDir(PathBuf);

impl TestDir {
    /// Makes `gybe-NAME-…` in the system's directory for temporary files.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::new_in(&std::env::temp_dir(), name)
    }

    /// Makes it in `parent`, for tests that need that file system: cargo's `CARGO_TARGET_TMPDIR` is on a
    /// disk, and may be executed from, where `/tmp` need not be.
    #[must_use]
    pub fn new_in(parent: &Path, name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("gybe-{name}-{}-{number}", std::process::id()));
        // A process of that id may have left one when it was killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self(path)
    }

    /// Makes these subdirectories as well.
    #[must_use]
    pub fn with_subdirectories(self, names: &[&str]) -> Self {
        for name in names {
            self.create_dir(name);
        }
        self
    }

    /// Makes a directory below this one, with its parents, and returns its path.
    pub fn create_dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Writes a file below this directory, makes its parents, and returns its path.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        let written =
            path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, content));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Replaces a file below this directory in one step, as Gybe's processes do: a rename wakes who watches the directory,
    /// a write need not.
    pub fn replace(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let name = name.as_ref();
        let fresh = self.write(name.with_extension("new"), content);
        let path = self.0.join(name);
        fs::rename(fresh, &path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Writes empty programs into a directory below this one, as other owners' plugins that no test runs.
    pub fn write_programs<'a>(&self, directory: &str, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            let path = self.write(Path::new(directory).join(name), "");
            fs::set_permissions(&path, Permissions::from_mode(0o755))
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Deref for TestDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TestDir {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for TestDir {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Replaces a volume's files in one step, as the kubelet does (`pkg/volume/util/atomic_writer.go`): writes all of them
/// to a new directory, points the symbolic link `..data` to it by a rename, and removes the old directory. The path of
/// each file is a link through `..data`; links to files that are no longer in the volume stay.
///
/// # Errors
/// Errors of the file system.
pub fn write_volume<N: AsRef<Path>, C: AsRef<[u8]>>(
    volume: &Path,
    files: impl IntoIterator<Item = (N, C)>,
) -> io::Result<()> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let version = format!("..{}", time.as_nanos());
    let (fresh, data, next) = (volume.join(&version), volume.join("..data"), volume.join("..data_tmp"));
    fs::create_dir_all(&fresh)?;
    let mut links = Vec::new();
    for (name, content) in files {
        let name = name.as_ref();
        fs::write(fresh.join(name), content)?;
        links.push((Path::new("..data").join(name), volume.join(name)));
    }
    let before = fs::read_link(&data).ok();
    symlink(version, &next)?;
    fs::rename(next, data)?;
    for (target, link) in links {
        if !link.is_symlink() {
            symlink(target, link)?;
        }
    }
    before.map_or(Ok(()), |before| fs::remove_dir_all(volume.join(before)))
}
