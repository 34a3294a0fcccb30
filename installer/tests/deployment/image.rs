//! The image: two programs, nothing beneath them, and the version that the manifests ask for.

use crate::objects::Objects;
use std::fs;
use std::path::Path;

fn instructions() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string("../manifests/Dockerfile").unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let read = |line: &str| {
        let (verb, rest) = line.split_once(' ').unwrap();
        (verb.to_owned(), rest.split(' ').map(str::to_owned).collect())
    };
    lines.map(read).collect()
}

#[test]
fn the_image_holds_two_programs_and_nothing_else() {
    let instructions = instructions();
    let verbs: Vec<_> = instructions.iter().map(|(verb, _)| verb.as_str()).collect();
    assert_eq!(verbs, ["FROM", "COPY", "USER", "ENV", "ENTRYPOINT"]);
    assert_eq!(instructions[0].1, ["scratch"]);
    assert_eq!(instructions[1].1, ["dist/gybe", "dist/gybe-cni", "/opt/gybe/bin/"]);
    let ignored = fs::read_to_string("../manifests/Dockerfile.dockerignore").unwrap();
    assert_eq!(ignored, "*\n!dist/gybe\n!dist/gybe-cni\n", "the builder is handed just what is copied");
}

#[test]
fn both_containers_run_this_versions_image_and_a_program_that_is_in_it() {
    let objects = Objects::in_directory(Path::new("../manifests/base"));
    for container in objects.pod().containers {
        assert_eq!(container.image.as_deref(), Some(concat!("gybe:", env!("CARGO_PKG_VERSION"))));
        assert_eq!(container.command.unwrap()[0], "/opt/gybe/bin/gybe");
    }
}
