//! The demo reports success with all rules, and failure without any one of them.

use gybe_integration::failure::Failure;
use gybe_integration::parallel::in_parallel;
use gybe_integration::programs::{Run, ours, path_of_ours, run};
use gybe_test_support::TestDir;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

fn demo(arguments: &[&str]) -> Result<Run, Failure> {
    Ok(ours("gybe-demo", arguments, "")?)
}

#[test]
fn with_all_rules_every_connection_reaches_its_destination_and_no_program_is_run() -> Result<(), Failure> {
    let run = demo(&["--json"])?;
    assert_eq!(run.code, Some(0), "{run:#?}");
    let report: Value = serde_json::from_str(&run.out)?;
    assert_eq!(report["as_expected"], true);
    assert_eq!(report["add"]["programs"], 0);
    assert_eq!(report["add"]["processes"], 0);
    let rows = report["connections"].as_array().map(Vec::len);
    assert_eq!(rows, Some(24));
    let is_redirected = |row: &&Value| row["with"].as_str().is_some_and(|with| with.contains(" orig="));
    let redirected = report["connections"].as_array().map(|rows| rows.iter().filter(is_redirected).count());
    assert!(redirected.is_some_and(|redirected| redirected >= 6), "{}", run.out);
    Ok(())
}

#[test]
fn without_any_one_rule_the_demo_fails_and_names_the_connections() -> Result<(), Failure> {
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

/// The control of the demo's claim that the plugin runs no program.
#[test]
fn a_plugin_that_runs_programs_is_reported() -> Result<(), Failure> {
    let directory = TestDir::new("demo-runs-programs");
    let plugin = path_of_ours("gybe-cni")?;
    let script = write_plugin(&directory, &format!("#!/bin/sh\n/bin/true\nexec '{}'\n", plugin.display()))?;
    let run = demo(&["--plugin", &script.to_string_lossy()])?;
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.out.contains("the ADD ran 2 programs and forked 1 processes"), "{}", run.out);
    assert!(run.out.contains("24 of 24 connections reached the expected destination"), "{}", run.out);
    Ok(())
}

#[test]
fn the_error_of_a_failing_plugin_is_printed_and_no_file_is_left() -> Result<(), Failure> {
    let directory = TestDir::new("demo-fails");
    let script =
        write_plugin(&directory, "#!/bin/sh\necho '{\"code\": 7, \"msg\": \"no such luck\"}'\nexit 1\n")?;
    let scratch = directory.create_dir("scratch");
    let (demo, setting) = (path_of_ours("gybe-demo")?, format!("TMPDIR={}", scratch.display()));
    let script = script.to_string_lossy();
    let run = run("env", &[&setting, &demo.to_string_lossy(), "--plugin", &script], "")?;
    assert_eq!(run.code, Some(2), "{run:#?}");
    assert!(run.err.contains("no such luck"), "{}", run.err);
    assert_eq!(fs::read_dir(&scratch)?.count(), 0);
    Ok(())
}

#[test]
fn without_privilege_the_hint_names_the_command() -> Result<(), Failure> {
    let demo = path_of_ours("gybe-demo")?;
    let run = run("setpriv", &["--bounding-set=-all", &demo.to_string_lossy()], "")?;
    assert_eq!(run.code, Some(2), "{run:#?}");
    assert!(run.err.contains("unshare --user --map-root-user --map-auto"), "{}", run.err);
    Ok(())
}

/// Writes a program that `--plugin` can name.
fn write_plugin(directory: &TestDir, text: &str) -> Result<PathBuf, Failure> {
    let path = directory.write("plugin", text);
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    Ok(path)
}
