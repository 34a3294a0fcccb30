//! Which modules the code of a module names: tests hold the rooms of ARCHITECTURE.md with it.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns each name that follows `prefix`, as `crate::`, in a module's file and in the files of its folder, with its file;
/// an empty name for an import of several. Without `tests`, the code of unit tests is left out.
///
/// # Panics
/// When there is no such module, or a file cannot be read.
#[must_use]
pub fn names_after(prefix: &str, module: &Path, tests: bool) -> Vec<(PathBuf, String)> {
    let mut names = Vec::new();
    let files = files(module);
    assert!(!files.is_empty(), "{} has no files", module.display());
    for file in files.into_iter().filter(|file| tests || !file.ends_with("tests.rs")) {
        let text = fs::read_to_string(&file).unwrap();
        let code = if tests { Some(&*text) } else { text.split("#[cfg(test)]\nmod tests {").next() };
        for behind in code.into_iter().flat_map(|code| code.split(prefix).skip(1)) {
            let name = behind.split(|it: char| !it.is_alphanumeric() && it != '_').next();
            names.push((file.clone(), name.unwrap_or_default().to_owned()));
        }
    }
    names
}

fn files(module: &Path) -> Vec<PathBuf> {
    let children = fs::read_dir(module).into_iter().flatten().map(|entry| entry.unwrap().path());
    let below = children.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    below.chain(Some(module.with_extension("rs")).filter(|file| file.is_file())).collect()
}
