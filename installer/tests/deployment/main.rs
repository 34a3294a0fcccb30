//! The manifests of the base: valid objects, minimal rights, and settings that the program accepts.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod migrate_values;
mod objects;
mod pod;
mod settings;

use objects::Objects;
use std::fs;
use std::path::Path;

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
    settings::assert_accepted(&base());
}

#[test]
fn the_program_accepts_its_arguments() {
    settings::assert_arguments_accepted(&base());
}

#[test]
fn the_image_contains_the_two_programs_and_their_licences_alone() {
    let text = fs::read_to_string("../manifests/Containerfile").unwrap();
    let instructions: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "FROM scratch",
        "COPY --chmod=0755 gybe gybe-cni /opt/gybe/bin/",
        "COPY --chmod=0644 LICENSE NOTICES gybe.cdx.json /licenses/",
        "USER 0:0",
        "ENV PATH=/opt/gybe/bin",
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
