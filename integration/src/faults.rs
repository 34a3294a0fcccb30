//! The fault catalogue, `docs/FAULTS.md`, and the tests that cover each fault: `fn f05_…`, `fn a03_f34_…`, found
//! in the sources.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A row of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `F05`, `A03`.
    pub id: String,
    pub description: String,
}

/// A test and one of the ids that its name begins with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultTest {
    pub id: String,
    /// Relative to the workspace's root.
    pub file: String,
    pub name: String,
}

#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error("cannot read {}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{file}:{line}: {name} has the id of a fault and is not a test")]
    NotATest {
        file: String,
        /// From 1.
        line: usize,
        name: String,
    },
    #[error("{0}: no module declares this file, so its tests do not run")]
    NotCompiled(String),
    #[error("{file}: {name} has the id {id}, which is not in docs/FAULTS.md")]
    UnknownId { id: String, file: String, name: String },
    #[error("no test has the id {}, which is in docs/FAULTS.md", .0.join(" or "))]
    Untested(Vec<String>),
}

/// Test programs without libtest's harness: they call their parts by name, so the compiler reports an unused one.
const WITHOUT_HARNESS: [&str; 1] = ["installer/tests/crash_injected"];

/// Macros that make a test of each function in them.
const TEST_MACROS: [&str; 2] = ["on_every_generation!", "proptest!"];

/// Reads the catalogue of the workspace at `root`.
///
/// # Errors
/// When it cannot be read.
pub fn catalogue(root: &Path) -> Result<Vec<Fault>, FaultError> {
    Ok(parse_catalogue(&read(&root.join("docs/FAULTS.md"))?))
}

fn parse_catalogue(text: &str) -> Vec<Fault> {
    let fault = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (id, description) = (cells.next()?, cells.next()?);
        let is_id = matches!(id.as_bytes(), [b'F' | b'A', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit());
        is_id.then(|| Fault { id: id.to_owned(), description: description.to_owned() })
    };
    text.lines().filter_map(fault).collect()
}

/// Returns every test below `root` whose name begins with an id, ordered by id, file and name.
///
/// # Errors
/// When a file cannot be read, when a function has an id and is not a test, and when no module declares a file with
/// tests.
pub fn fault_tests(root: &Path) -> Result<Vec<FaultTest>, FaultError> {
    let mut files = Vec::new();
    collect_sources(root, &mut files)?;
    let mut tests = Vec::new();
    for path in files {
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let text = read(&path)?;
        if text.contains("#[test]") && !is_compiled(&path) {
            return Err(FaultError::NotCompiled(file));
        }
        find_tests(&file, &text, &mut tests)?;
    }
    tests.sort();
    Ok(tests)
}

/// Checks that every fault has a test and every test's id is in the catalogue.
///
/// # Errors
/// With the ids that are missing on one side.
pub fn check(catalogue: &[Fault], tests: &[FaultTest]) -> Result<(), FaultError> {
    let is_unknown = |test: &&FaultTest| !catalogue.iter().any(|fault| fault.id == test.id);
    if let Some(FaultTest { id, file, name }) = tests.iter().find(is_unknown).cloned() {
        return Err(FaultError::UnknownId { id, file, name });
    }
    let is_untested = |fault: &&Fault| !tests.iter().any(|test| test.id == fault.id);
    let untested: Vec<String> = catalogue.iter().filter(is_untested).map(|fault| fault.id.clone()).collect();
    if untested.is_empty() { Ok(()) } else { Err(FaultError::Untested(untested)) }
}

/// Formats the tests of each fault, by file.
pub fn list(catalogue: &[Fault], tests: &[FaultTest]) -> String {
    let mut text = String::new();
    for fault in catalogue {
        let _ = writeln!(text, "{}: {}", fault.id, fault.description);
        let mut file = "";
        for test in tests.iter().filter(|test| test.id == fault.id) {
            if test.file != file {
                file = &test.file;
                let _ = writeln!(text, "  {file}");
            }
            let _ = writeln!(text, "    {}", test.name);
        }
    }
    text
}

/// Reports whether this file is the root of a cargo target, or such a root declares it, directly or by other modules.
fn is_compiled(file: &Path) -> bool {
    let (Some(folder), Some(name)) = (file.parent(), file.file_stem()) else { return false };
    if name == "main" || name == "lib" || folder.ends_with("tests") || folder.ends_with("bin") {
        return true;
    }
    let declaration = format!("mod {};", name.to_string_lossy());
    let declares = |parent: &PathBuf| {
        fs::read_to_string(parent).is_ok_and(|text| text.lines().any(|line| line.ends_with(&declaration)))
    };
    let parents = [folder.join("main.rs"), folder.join("lib.rs"), folder.with_extension("rs")];
    parents.into_iter().any(|parent| declares(&parent) && is_compiled(&parent))
}

fn read(path: &Path) -> Result<String, FaultError> {
    fs::read_to_string(path).map_err(|source| unreadable(path, source))
}

fn unreadable(path: &Path, source: io::Error) -> FaultError {
    FaultError::Unreadable { path: path.to_owned(), source }
}

fn collect_sources(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), FaultError> {
    for entry in fs::read_dir(directory).map_err(|source| unreadable(directory, source))? {
        let entry = entry.map_err(|source| unreadable(directory, source))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && name != "target" && !name.starts_with('.') {
            collect_sources(&path, files)?;
        } else if !is_directory && name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn find_tests(file: &str, text: &str, tests: &mut Vec<FaultTest>) -> Result<(), FaultError> {
    let lines: Vec<&str> = text.lines().collect();
    for (n, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line.trim()) else { continue };
        let ids = leading_ids(name);
        if ids.is_empty() {
            continue;
        }
        if !is_test(file, lines.get(..n).unwrap_or_default()) {
            return Err(FaultError::NotATest { file: file.to_owned(), line: n + 1, name: name.to_owned() });
        }
        tests.extend(ids.into_iter().map(|id| FaultTest {
            id,
            file: file.to_owned(),
            name: name.to_owned(),
        }));
    }
    Ok(())
}

/// The name of the function that this line declares.
fn function_name(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    line.strip_prefix("fn ")?.split(['(', '<']).next()
}

fn leading_ids(mut name: &str) -> Vec<String> {
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

/// Reports whether the lines above a function make it a test: an attribute, or a macro that is still open.
fn is_test(file: &str, above: &[&str]) -> bool {
    let near = above.iter().rev().map(|line| line.trim());
    let mut near = near.take_while(|line| line.starts_with('#') || line.starts_with("//"));
    near.any(|line| line.starts_with("#[test]") || line.contains("::test]"))
        || is_in_macro(above)
        || WITHOUT_HARNESS.iter().any(|program| file.starts_with(program))
}

/// Reports whether a macro that makes tests is still open: its closing brace has the indentation of its first line.
fn is_in_macro(above: &[&str]) -> bool {
    let makes_tests = |line: &&str| TEST_MACROS.iter().any(|name| line.trim_start().starts_with(name));
    let Some(opened) = above.iter().rposition(makes_tests) else { return false };
    let mut inside = above.iter().skip(opened);
    let indentation =
        inside.next().map_or("", |line| line.split(|c: char| c != ' ').next().unwrap_or_default());
    !inside.any(|line| line.strip_prefix(indentation).is_some_and(|rest| rest.starts_with('}')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_in_the_catalogue_has_a_test_and_every_test_of_a_fault_is_in_the_catalogue() {
        // Cargo runs a test in its package's directory.
        let root = Path::new("..");
        let catalogue = catalogue(root).unwrap();
        let ids: Vec<&str> = catalogue.iter().map(|fault| fault.id.as_str()).collect();
        let faults = (1..=40).map(|n| format!("F{n:02}"));
        assert_eq!(ids, faults.chain((1..=11).map(|n| format!("A{n:02}"))).collect::<Vec<_>>());
        check(&catalogue, &fault_tests(root).unwrap()).unwrap_or_else(|error| panic!("{error}"));
    }

    fn find(text: &str) -> Result<Vec<(String, String)>, String> {
        let mut tests = Vec::new();
        find_tests("x.rs", text, &mut tests).map_err(|why| why.to_string())?;
        Ok(tests.into_iter().map(|test| (test.id, test.name)).collect())
    }

    fn test_of(id: &str) -> FaultTest {
        FaultTest { id: id.into(), file: "a.rs".into(), name: "it_holds".into() }
    }

    #[test]
    fn a_test_covers_every_id_at_the_beginning_of_its_name() {
        let text = "#[test]\n#[cfg(unix)]\nfn f05_a03_it_holds() {}\n\n#[test]\nfn no_id_f05_inside() {}";
        let expected = ["F05", "A03"].map(|id| (id.to_owned(), "f05_a03_it_holds".to_owned()));
        assert_eq!(find(text).unwrap(), expected);
    }

    #[test]
    fn a_function_in_a_macro_that_makes_tests_is_a_test() {
        let text = "on_every_generation! {\n    /// Kills it.\n    fn f15_killed(generation: Generation) {\n    }\n}";
        assert_eq!(find(text).unwrap(), [("F15".into(), "f15_killed".into())]);
        let closed = "mod tests {\n    proptest! {\n    }\n    fn f15_helper() {}\n}";
        assert!(find(closed).is_err());
    }

    #[test]
    fn a_function_with_an_id_that_is_not_a_test_is_an_error() {
        let error = find("fn f05_helper() {}").unwrap_err();
        assert_eq!(error, "x.rs:1: f05_helper has the id of a fault and is not a test");
    }

    #[test]
    fn a_file_with_tests_that_no_module_declares_is_an_error() {
        let root = gybe_test_support::TestDir::new("faults");
        root.write("tests/kernel/main.rs", "mod rules;");
        root.write("tests/kernel/rules.rs", "#[test]\nfn f05_it_holds() {}");
        assert_eq!(fault_tests(&root).unwrap().len(), 1);
        root.write("tests/kernel/main.rs", "");
        let error = fault_tests(&root).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tests/kernel/rules.rs: no module declares this file, so its tests do not run"
        );
    }

    #[test]
    fn a_fault_without_a_test_and_a_test_of_an_unknown_fault_are_errors() {
        let faults = parse_catalogue("| | Fault |\n|---|---|\n| F01 | slow | x |\n| A01 | text | y |\n");
        assert_eq!(faults.len(), 2);
        let all = [test_of("F01"), test_of("A01")];
        check(&faults, &all).unwrap();
        assert_eq!(list(&faults, &all), "F01: slow\n  a.rs\n    it_holds\nA01: text\n  a.rs\n    it_holds\n");
        assert!(
            matches!(check(&faults, &[test_of("A01")]), Err(FaultError::Untested(ids)) if ids == ["F01"])
        );
        let unknown = check(&faults, &[test_of("F02")]);
        assert!(matches!(unknown, Err(FaultError::UnknownId { id, .. }) if id == "F02"));
    }
}
