//! The manifests of the base: valid objects, minimal rights, and settings that the program accepts.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod objects;
mod pod;

use objects::Objects;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn base() -> Objects {
    Objects::in_directory(Path::new("../manifests/base"))
}

#[test]
fn every_field_of_every_object_is_known_to_kubernetes() {
    base().assert_all_fields_known();
}

#[test]
fn the_agent_has_only_rights_to_read_and_to_write_events() {
    pod::assert_rights_to_read_and_to_write_events(&base());
}

#[test]
fn no_container_is_privileged_and_each_has_only_the_capabilities_it_needs() {
    pod::assert_confined(&base());
}

#[test]
fn selectors_labels_and_references_are_consistent() {
    pod::assert_consistent(&base());
}

#[test]
fn two_agents_fit_on_a_node_and_the_kubelet_queries_each_by_itself() {
    pod::assert_surges(&base());
}

#[test]
fn the_program_accepts_the_settings_and_its_directories_are_mounted() {
    pod::assert_accepted(&base());
}

#[test]
fn the_program_accepts_its_arguments() {
    pod::assert_arguments_accepted(&base());
}

#[test]
fn the_image_contains_the_two_programs_and_their_licences_alone() {
    let text = fs::read_to_string("../manifests/Containerfile").unwrap();
    // A label's values are in further lines.
    let counts =
        |line: &&str| !line.starts_with('#') && !line.starts_with("LABEL ") && !line.starts_with(' ');
    let instructions: Vec<_> = text.lines().filter(counts).collect();
    let expected = [
        "FROM scratch",
        "COPY --chmod=0755 gybe gybe-cni /opt/gybe/bin/",
        "COPY --chmod=0644 LICENSE NOTICES gybe.cdx.json /licenses/",
        "USER 0:0",
        "ENV PATH=/opt/gybe/bin",
        "ARG VERSION",
        "ENTRYPOINT [\"/opt/gybe/bin/gybe\"]",
    ];
    assert_eq!(instructions, expected);
}

#[test]
fn both_containers_run_a_program_of_this_versions_image() {
    for container in base().pod().containers {
        assert_eq!(container.image.as_deref(), Some(concat!("gybe:", env!("CARGO_PKG_VERSION"))));
        assert_eq!(container.command.unwrap()[0], "/opt/gybe/bin/gybe");
    }
}

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
    assert_eq!(refused, ["hub", "profile", "global.resourceScope"]);
    assert_eq!((&json["complete"], output.status.code()), (&false.into(), Some(1)));
    for (file, says) in
        [("/nowhere/values.yaml", "cannot open"), ("../manifests/README.md", "cannot use the values in")]
    {
        let output = migrate_values(&[file]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains(says), "{file}: {stderr}");
    }
}
