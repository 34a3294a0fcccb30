//! `gybe demo` says what is true: all is well with all rules, and not without any one of them.

use gybe_integration::failure::Failure;
use gybe_integration::parallel::in_parallel;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn demo(arguments: &[&str]) -> Result<Run, Failure> {
    let arguments: Vec<&str> = ["demo"].into_iter().chain(arguments.iter().copied()).collect();
    Ok(ours("gybe", &arguments, "")?)
}

#[test]
fn with_all_rules_every_connection_goes_where_it_must_and_no_program_is_run() -> Result<(), Failure> {
    let run = demo(&["--json"])?;
    assert_eq!(run.code, Some(0), "{run:#?}");
    let told: Value = serde_json::from_str(&run.out)?;
    assert_eq!(told["as_expected"], true);
    assert_eq!(told["add"]["programs"], 0);
    assert_eq!(told["add"]["processes"], 0);
    let rows = told["connections"].as_array().map(Vec::len);
    assert_eq!(rows, Some(24));
    let turned = |row: &&Value| row["with"].as_str().is_some_and(|with| with.contains(" orig="));
    let turned = told["connections"].as_array().map(|rows| rows.iter().filter(turned).count());
    assert!(turned.is_some_and(|turned| turned >= 6), "{}", run.out);
    Ok(())
}

#[test]
fn without_any_one_rule_it_fails_and_names_the_connections() -> Result<(), Failure> {
    let unknown = demo(&["--without", "no-such-rule"])?;
    assert_eq!(unknown.code, Some(2), "{unknown:#?}");
    let known = unknown.err.split("it has ").nth(1).unwrap_or_default().trim();
    let known: Vec<&str> = known.split(", ").collect();
    assert!(known.len() >= 12, "{known:?}");
    let runs = in_parallel(known, |rule| demo(&["--without", rule]).map(|run| (rule, run)));
    for run in runs {
        let (rule, run) = run?;
        assert_eq!(run.code, Some(1), "without {rule}: {run:#?}");
        assert!(run.out.contains("\nwrong: "), "without {rule}: {}", run.out);
    }
    Ok(())
}

/// A plugin that runs others first: the demo must notice, or what it says of ours is worth nothing.
#[test]
fn a_plugin_that_runs_programs_is_found_out() -> Result<(), Failure> {
    let place = Place::new("runs-programs")?;
    let plugin = path_of_ours("gybe-cni")?;
    let script = place.program(&format!("#!/bin/sh\n/bin/true\nexec '{}'\n", plugin.display()))?;
    let run = demo(&["--plugin", &script.to_string_lossy()])?;
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.out.contains("the ADD ran 2 programs and forked 1 processes"), "{}", run.out);
    assert!(run.out.contains("24 of 24 connections went where they must"), "{}", run.out);
    Ok(())
}

#[test]
fn a_plugin_that_fails_is_quoted_and_nothing_is_left_behind() -> Result<(), Failure> {
    let place = Place::new("fails")?;
    let script = place.program("#!/bin/sh\necho '{\"code\": 7, \"msg\": \"no such luck\"}'\nexit 1\n")?;
    let scratch = place.0.join("scratch");
    fs::create_dir(&scratch)?;
    let (gybe, setting) = (path_of_ours("gybe")?, format!("TMPDIR={}", scratch.display()));
    let script = script.to_string_lossy();
    let run = run("env", &[&setting, &gybe.to_string_lossy(), "demo", "--plugin", &script], "")?;
    assert_eq!(run.code, Some(2), "{run:#?}");
    assert!(run.err.contains("no such luck"), "{}", run.err);
    assert_eq!(fs::read_dir(&scratch)?.count(), 0);
    Ok(())
}

#[test]
fn without_privilege_it_says_what_would_make_it_work() -> Result<(), Failure> {
    let gybe = path_of_ours("gybe")?;
    let run = run("setpriv", &["--bounding-set=-all", &gybe.to_string_lossy(), "demo"], "")?;
    assert_eq!(run.code, Some(2), "{run:#?}");
    assert!(run.err.contains("unshare --user --map-root-user --map-auto"), "{}", run.err);
    Ok(())
}

/// A directory of one test; gone with this value.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("gybe-test-{test}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn program(&self, text: &str) -> Result<PathBuf, Failure> {
        let path: &Path = &self.0.join("plugin");
        fs::write(path, text)?;
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        Ok(path.to_owned())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
