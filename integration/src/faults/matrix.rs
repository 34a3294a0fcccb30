//! The catalogue and the tests that show it, as docs/FAULTS.md.

use super::{CATALOGUE, Fault, Shown};
use std::fmt::Write;

/// Why there is no matrix.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// A test names what is not in the catalogue.
    #[error("{file}: {name} bears the id {id}, which nothing in the catalogue has")]
    Unknown {
        /// The id.
        id: String,
        /// Where it is.
        file: String,
        /// Which test.
        name: String,
    },
    /// Nobody shows them, and nobody says why.
    #[error("no test bears the id {}, and the catalogue does not say why", .0.join(" or "))]
    Untested(Vec<&'static str>),
    /// The excuse has outlived itself.
    #[error("tests bear the id {}, and the catalogue still says why there are none", .0.join(" and "))]
    Excused(Vec<&'static str>),
}

const HEAD: &str = "# What goes wrong, and what shows that Gybe bears it

Made from the names of the tests by `make faults`; a test holds the two together. Faults are F, what a pod's owner can try is A.

| | What goes wrong | What Gybe does | Tests |
|---|---|---|---|
";

/// The text of the matrix.
///
/// # Errors
/// When catalogue and tests do not belong together.
pub fn matrix(shown: &[Shown]) -> Result<String, MatrixError> {
    let unknown = |one: &&Shown| !CATALOGUE.iter().any(|fault| fault.id == one.id);
    if let Some(Shown { id, file, name }) = shown.iter().find(unknown).cloned() {
        return Err(MatrixError::Unknown { id, file, name });
    }
    let is_shown = |fault: &Fault| shown.iter().any(|one| one.id == fault.id);
    let both = |shown: bool, excused: bool| -> Vec<_> {
        let those = CATALOGUE.iter().filter(|fault| is_shown(fault) == shown);
        those.filter(|fault| fault.untested.is_some() == excused).map(|fault| fault.id).collect()
    };
    match (both(false, false), both(true, true)) {
        (untested, _) if !untested.is_empty() => return Err(MatrixError::Untested(untested)),
        (_, excused) if !excused.is_empty() => return Err(MatrixError::Excused(excused)),
        _ => {}
    }
    let (mut table, mut lists) = (HEAD.to_owned(), String::new());
    for fault in CATALOGUE {
        let tests: Vec<&Shown> = shown.iter().filter(|one| one.id == fault.id).collect();
        let count =
            fault.untested.map_or_else(|| tests.len().to_string(), |why| format!("not tested here: {why}"));
        let Fault { id, what, then, .. } = fault;
        let _ = writeln!(table, "| {id} | {what} | {then} | {count} |");
        list(&mut lists, &fault, &tests);
    }
    Ok(format!("{table}{lists}"))
}

/// The tests of one fault, by file.
fn list(lists: &mut String, fault: &Fault, tests: &[&Shown]) {
    if tests.is_empty() {
        return;
    }
    let _ = writeln!(lists, "\n## {}: {}\n", fault.id, fault.what);
    let mut file = "";
    for test in tests {
        if test.file != file {
            file = &test.file;
            let _ = writeln!(lists, "- `{file}`");
        }
        let _ = writeln!(lists, "  - `{}`", test.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(id: &str) -> Shown {
        Shown { id: id.into(), file: "a.rs".into(), name: "it_holds".into() }
    }

    fn all() -> Vec<Shown> {
        let tested = CATALOGUE.iter().filter(|fault| fault.untested.is_none());
        tested.map(|fault| one(fault.id)).collect()
    }

    #[test]
    fn the_catalogue_is_in_order_and_complete() {
        let ids: Vec<String> = CATALOGUE.iter().map(|fault| fault.id.to_owned()).collect();
        let faults = (1..=40).map(|n| format!("F{n:02}"));
        assert_eq!(ids, faults.chain((1..=11).map(|n| format!("A{n:02}"))).collect::<Vec<_>>());
    }

    #[test]
    fn every_fault_has_its_line_and_its_tests() {
        let text = matrix(&all()).unwrap();
        assert_eq!(text.matches("\n| F").count() + text.matches("\n| A").count(), CATALOGUE.len());
        assert!(text.contains("## F07: ") && text.contains("- `a.rs`\n  - `it_holds`\n"));
    }

    #[test]
    fn a_fault_nobody_shows_and_an_id_nobody_knows_are_refused() {
        let without = |id: &str| all().into_iter().filter(|one| one.id != id).collect::<Vec<_>>();
        assert_eq!(matrix(&without("F07")), Err(MatrixError::Untested(vec!["F07"])));
        let mut more = all();
        more.push(one("F41"));
        assert!(matches!(matrix(&more), Err(MatrixError::Unknown { id, .. }) if id == "F41"));
    }
}
