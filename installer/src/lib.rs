//! The library of `gybe`: the node agent and the operator's command line.

pub mod agent;
mod agent_status;
pub mod cli;
pub mod cluster;
pub mod diagnosis;
mod error;
pub mod host;
mod istio_cni_taint;
mod lead;
mod log;
mod mounts;
pub mod pod;
pub mod probe;
mod probe_loop;
pub mod retry;
pub mod sandboxes;
mod workstation;

#[cfg(test)]
mod tests {
    use gybe_test_support::names_after;
    use std::path::Path;

    /// The rooms that each room may use (ARCHITECTURE.md); `cli` may use all of them.
    const ROOMS: [(&str, &[&str]); 11] = [
        ("agent", &["cluster", "lead", "sandboxes", "host", "pod", "probe"]),
        ("probe_loop", &["lead", "sandboxes", "host"]),
        ("diagnosis", &["sandboxes", "host", "pod", "probe"]),
        ("workstation", &["cluster"]),
        ("istio_cni_taint", &["cluster", "host"]),
        ("cluster", &["host"]),
        ("lead", &["host"]),
        ("sandboxes", &["host", "pod", "probe"]),
        ("host", &["pod", "probe"]),
        ("pod", &[]),
        ("probe", &[]),
    ];
    /// Modules that use no room, and that every room may use.
    const GROUND: [&str; 5] = ["agent_status", "error", "log", "mounts", "retry"];

    #[test]
    fn a_room_uses_only_rooms_below_it() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let ground = GROUND.map(|module| (module, &[][..]));
        for (room, below) in ROOMS.into_iter().chain(ground) {
            for (file, used) in names_after("crate::", &source.join(room), true) {
                let used = used.as_str();
                let is_allowed = used == room || below.contains(&used) || GROUND.contains(&used);
                assert!(is_allowed, "{} uses {used:?}", file.display());
            }
        }
    }
}
