//! Which test bears which id: `fn f05_…`, `fn a03_f34_…`, found in the sources themselves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One test and the ids in front of its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// `F05`, `A03`.
    pub id: String,
    /// Below the workspace's root.
    pub file: String,
    /// The function, its ids in front.
    pub name: String,
}

/// Why the sources say nothing.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A directory or file.
    #[error("cannot read {}", .path.display())]
    Unread {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A name that promises a test where there is none.
    #[error("{file}:{line}: {name} bears the id of a fault and is no test")]
    NoTest {
        /// Below the root.
        file: String,
        /// From 1.
        line: usize,
        /// The function.
        name: String,
    },
}

/// Programs that are one test each and call their parts by name: the compiler finds a part that
/// nobody calls.
const WITHOUT_HARNESS: [&str; 1] = ["installer/tests/struck/"];

/// Macros that make a test of each function in them.
const MAKES_TESTS: [&str; 2] = ["on_every_generation!", "proptest!"];

/// Every test below `root` whose name bears an id, in the order of ids, files and names.
///
/// # Errors
/// When something cannot be read, and when a function bears an id and is no test.
pub fn shown(root: &Path) -> Result<Vec<Shown>, SourceError> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    let mut shown = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).map_err(|source| unread(&path, source))?;
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        read(&file, &text, &mut shown)?;
    }
    shown.sort();
    Ok(shown)
}

fn unread(path: &Path, source: io::Error) -> SourceError {
    SourceError::Unread { path: path.to_owned(), source }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), SourceError> {
    for entry in fs::read_dir(folder).map_err(|source| unread(folder, source))? {
        let entry = entry.map_err(|source| unread(folder, source))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && name != "target" && !name.starts_with('.') {
            collect(&path, files)?;
        } else if !is_folder && name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(file: &str, text: &str, shown: &mut Vec<Shown>) -> Result<(), SourceError> {
    let lines: Vec<&str> = text.lines().collect();
    for (n, line) in lines.iter().enumerate() {
        let Some(name) = function(line.trim()) else { continue };
        let ids = ids(name);
        if ids.is_empty() {
            continue;
        }
        if !is_test(file, lines.get(..n).unwrap_or_default()) {
            return Err(SourceError::NoTest { file: file.to_owned(), line: n + 1, name: name.to_owned() });
        }
        shown.extend(ids.into_iter().map(|id| Shown { id, file: file.to_owned(), name: name.to_owned() }));
    }
    Ok(())
}

/// The name a line gives to a function.
fn function(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

fn ids(mut name: &str) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some((word, rest)) = name.split_once('_') {
        match word.as_bytes() {
            [b'f' | b'a', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit() => {
                ids.push(word.to_ascii_uppercase());
            }
            _ => break,
        }
        name = rest;
    }
    ids
}

/// Whether the lines above say so: an attribute, or a macro that is still open.
fn is_test(file: &str, above: &[&str]) -> bool {
    let near = above.iter().rev().map(|line| line.trim());
    let mut near = near.take_while(|line| line.starts_with('#') || line.starts_with("//"));
    near.any(|line| line.starts_with("#[test]") || line.contains("::test]"))
        || in_macro(above)
        || WITHOUT_HARNESS.iter().any(|program| file.starts_with(program))
}

/// Whether a macro that makes tests is still open: what closes it stands below where it began.
fn in_macro(above: &[&str]) -> bool {
    let makes_tests = |line: &&str| MAKES_TESTS.iter().any(|makes| line.trim_start().starts_with(makes));
    let Some(opened) = above.iter().rposition(makes_tests) else { return false };
    let mut inside = above.iter().skip(opened);
    let margin = inside.next().map_or("", |line| line.split(|c: char| c != ' ').next().unwrap_or_default());
    !inside.any(|line| line.strip_prefix(margin).is_some_and(|rest| rest.starts_with('}')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(text: &str) -> Result<Vec<(String, String)>, String> {
        let mut shown = Vec::new();
        read("x.rs", text, &mut shown).map_err(|why| why.to_string())?;
        Ok(shown.into_iter().map(|one| (one.id, one.name)).collect())
    }

    #[test]
    fn a_test_shows_every_id_in_front_of_its_name() {
        let text = "#[test]\n#[cfg(unix)]\nfn f05_a03_it_holds() {}\n\n#[test]\nfn no_id_f05_inside() {}";
        let want = ["F05", "A03"].map(|id| (id.to_owned(), "f05_a03_it_holds".to_owned()));
        assert_eq!(read_all(text).unwrap(), want);
    }

    #[test]
    fn a_function_in_a_macro_that_makes_tests_is_one() {
        let text =
            "on_every_generation! {\n    /// Why.\n    fn f15_killed(generation: Generation) {\n    }\n}";
        assert_eq!(read_all(text).unwrap(), [("F15".into(), "f15_killed".into())]);
        let closed = "mod tests {\n    proptest! {\n    }\n    fn f15_helper() {}\n}";
        assert!(read_all(closed).is_err());
    }

    #[test]
    fn an_id_on_what_is_no_test_is_refused() {
        let complaint = read_all("fn f05_helper() {}").unwrap_err();
        assert_eq!(complaint, "x.rs:1: f05_helper bears the id of a fault and is no test");
    }
}
