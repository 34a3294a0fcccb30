//! Volumes that the kubelet updates: ConfigMaps, and the tokens of service accounts.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

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
