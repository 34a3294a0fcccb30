//! The manifests as they lie there, before any platform's overlay: what the API server would take, what
//! the pod may do, and whether the program finds what it was promised.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that meets what it did not expect has nothing better to do"
)]

#[cfg(test)]
mod image;
#[cfg(test)]
mod left;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod pod;
#[cfg(test)]
mod rights;
#[cfg(test)]
mod wishes;

#[cfg(test)]
mod tests {
    use super::objects::Objects;
    use super::{left, pod, rights, wishes};
    use std::path::Path;

    fn base() -> Objects {
        Objects::in_directory(Path::new("../manifests/base"))
    }

    #[test]
    fn every_object_is_one_that_kubernetes_knows_to_the_last_field() {
        base().assert_known();
    }

    #[test]
    fn leaving_waits_for_every_agent() {
        left::assert_every_agent_is_waited_for();
    }

    #[test]
    fn leaving_waits_for_nodes_whose_agent_is_not_there() {
        left::assert_nodes_without_an_agent_are_waited_for();
    }

    #[test]
    fn the_agent_may_read_and_nothing_else() {
        rights::assert_read_only(&base());
    }

    #[test]
    fn nobody_is_privileged_and_each_container_has_just_what_it_needs() {
        pod::assert_confined(&base());
    }

    #[test]
    fn selector_labels_and_references_belong_together() {
        pod::assert_consistent(&base());
    }

    #[test]
    fn the_program_understands_its_settings_and_finds_its_directories() {
        wishes::assert_understood(&base());
    }

    #[test]
    fn the_program_takes_its_arguments() {
        wishes::assert_arguments(&base());
    }
}
