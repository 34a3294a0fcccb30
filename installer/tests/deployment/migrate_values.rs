//! `gybe migrate values` on the files in `manifests/chart-values`. `manifests/build.sh` checks that the chart renders
//! the same objects from a file and from its translation.

use std::fs;
use std::process::{Command, Output};

/// Files with values of istio-cni's chart, each with the exit code of its translation.
const FILES: [(&str, i32); 5] =
    [("global", 0), ("istio-cni", 0), ("istio-cni-label", 0), ("istio-cni-older", 0), ("refused", 1)];

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn migrate_values(arguments: &[&str]) -> Output {
    let mut gybe = Command::new(env!("CARGO_BIN_EXE_gybe"));
    gybe.args(["migrate", "values"]).args(arguments).output().unwrap()
}

#[test]
fn the_translations_are_those_that_the_chart_is_rendered_with() {
    for (name, code) in FILES {
        let output = migrate_values(&[&format!("../manifests/chart-values/{name}.yaml")]);
        assert_eq!(output.status.code(), Some(code), "{name}: {output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let path = format!("../manifests/chart-values/translated/{name}.yaml");
        if std::env::var_os("GYBE_WRITE").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap();
        assert_eq!(text, expected, "{path} differs; with GYBE_WRITE=1 this test writes it");
    }
}

#[test]
fn values_that_cannot_be_applied_are_named_and_unreadable_ones_are_an_error() {
    let output = migrate_values(&["../manifests/chart-values/refused.yaml", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let outcomes = json["outcomes"].as_array().unwrap();
    let refused = outcomes.iter().filter(|outcome| outcome.get("refused").is_some());
    let refused: Vec<&str> = refused.map(|outcome| outcome["key"].as_str().unwrap()).collect();
    assert_eq!(refused, ["hub", "ambient.enabled", "global.resourceScope"]);
    assert_eq!((&json["complete"], output.status.code()), (&false.into(), Some(1)));
    for (file, says) in
        [("/nowhere/values.yaml", "cannot open"), ("../manifests/README.md", "cannot use the values in")]
    {
        let output = migrate_values(&[file]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(says), "{file}: {stderr}");
    }
}
