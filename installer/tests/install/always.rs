//! Property tests: after every single change to any conf directory the runtime loads the same network as before.

use gybe_installer::host::apply::apply;
use gybe_installer::host::desired::{Confirmed, DesiredState, Install, PutBack, Shape};
use gybe_installer::host::libcni::choice::choose;
use gybe_installer::host::observe::ObserveScope;
use gybe_installer::host::plan::plan;
use gybe_installer::host::runtimes::DropIns;
use gybe_installer::host::runtimes::Runtime;
use proptest::prelude::*;

use crate::ground::Ground;
use crate::wants::{chained, installed, left, name};

const NAMES: [&str; 10] = [
    "10-a.conf",
    "10-a.conflist",
    "10-a.json",
    "10-a.conf.conflist",
    "10-a.json.conflist",
    "05-b.conf",
    "20-c.conflist",
    ".conf",
    "10-a.conf5.conf",
    "10-a.conf-5.conf",
];

/// Returns a conf file's content. The names of its network and plugin contain `n`, so that tests can tell files apart.
fn content(kind: u8, n: usize) -> String {
    match kind {
        0 => format!("{{\n  \"name\": \"net{n}\",\n  \"type\": \"p{n}\"\n}}\n"),
        1 => format!("{{\"cniVersion\":\"1.0.0\",\"name\":\"net{n}\",\"plugins\":[{{\"type\":\"p{n}\"}}]}}"),
        2 => format!(
            "{{\n \"plugins\": [\n  {{ \"type\": \"p{n}\" }},\n  {{ \"type\": \"portmap\" }}\n ],\n \"name\": \"net{n}\" }}"
        ),
        3 => format!("{{\"type\":\"p{n}\"}}"),
        4 => format!("{{\"name\":\"net{n}\",\"plugins\":["),
        5 => "{\"name\":\"istio-cni\",\"type\":\"istio-cni\"}".to_owned(),
        _ => format!("{{\"name\":\"net{n}\",\"type\":\"p{n}\",\"plugins\":[{{\"type\":\"q{n}\"}}]}}"),
    }
}

fn network(ground: &Ground, runtime: Runtime) -> Option<(String, Vec<String>)> {
    let network =
        choose(&ground.observe(&ObserveScope::default()).conf, runtime, DropIns::Loaded).ok()?.network;
    let mut plugins = network.plugins;
    plugins.retain(|plugin| plugin != "gybe-cni");
    Some((network.name, plugins))
}

/// Plans and applies until no change is left, and checks the loaded network after each single change.
fn walk(ground: &Ground, wanted: &DesiredState) {
    let before = [Runtime::Containerd, Runtime::CriO].map(|runtime| network(ground, runtime));
    for _ in 0..3 {
        let planned = plan(&ground.observe(&wanted.interest()), wanted);
        for change in &planned.changes {
            let performed = apply(std::slice::from_ref(change), &ground.places());
            assert!(performed.failed.is_empty(), "{change}: {:?}", performed.failed);
            let after = [Runtime::Containerd, Runtime::CriO].map(|runtime| network(ground, runtime));
            assert_eq!(
                after,
                before,
                "after: {change}, of {:#?}\n{:#?}",
                planned.changes,
                ground.files().keys()
            );
        }
    }
    let last = plan(&ground.observe(&wanted.interest()), wanted);
    assert!(last.changes.is_empty(), "{:#?}", last.changes);
}

fn wanted(ground: &Ground, which: u8) -> DesiredState {
    // The plugins that these conf files name do not exist, so the directory must be confirmed by the operator.
    let confirmed = |wanted| match wanted {
        DesiredState::Installed(install) => {
            DesiredState::Installed(Install { confirmed: Confirmed::Yes, ..install })
        }
        left @ DesiredState::Uninstalled(_) => left,
    };
    confirmed(match which {
        0 | 1 => chained(&ground.root),
        2 => installed(&ground.root, Shape::DropIn),
        3 => left(&ground.root, PutBack::Nothing),
        _ => installed(&ground.root, Shape::Standalone { file: name("YYY-gybe-cni.conf") }),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_step_ever_changes_what_the_runtime_loads_but_for_us(
        files in prop::collection::btree_map(0..NAMES.len(), 0..7_u8, 1..5),
        wishes in prop::collection::vec(0..5_u8, 1..4),
    ) {
        let ground = Ground::new();
        for (n, kind) in &files {
            ground.put(NAMES[*n], content(*kind, *n));
        }
        let before = ground.files();
        // In an empty directory the standalone shape would be the loaded network, as intended, so it is not tested.
        let any = network(&ground, Runtime::CriO).is_some();
        for which in wishes.into_iter().filter(|which| any || *which < 4) {
            walk(&ground, &wanted(&ground, which));
        }
        walk(&ground, &left(&ground.root, PutBack::Nothing));
        prop_assert_eq!(ground.files(), before);
    }

    #[test]
    fn f05_a_rewrite_between_any_two_steps_is_kept_and_healed(
        n in 0..NAMES.len(), kind in 0..3_u8, stop in 0..4_usize, again in 0..3_u8,
    ) {
        let ground = Ground::new();
        ground.put(NAMES[n], content(kind, n));
        if network(&ground, Runtime::CriO).is_some() {
            let wanted = wanted(&ground, 0);
            let planned = plan(&ground.observe(&wanted.interest()), &wanted);
            let _ = apply(&planned.changes[..stop.min(planned.changes.len())], &ground.places());
            let newer = content(again, n).replace("portmap", "tuning");
            ground.put(NAMES[n], &newer);
            let loads = network(&ground, Runtime::CriO);
            // Planned changes that would undo the primary's later write are refused.
            let _ = apply(&planned.changes[stop.min(planned.changes.len())..], &ground.places());
            prop_assume!(loads.is_some());
            prop_assert_eq!(network(&ground, Runtime::CriO), loads);
            for _ in 0..3 { ground.pass(&wanted); }
            for _ in 0..3 { ground.pass(&left(&ground.root, PutBack::Nothing)); }
            prop_assert_eq!(ground.text(NAMES[n]), newer);
        }
    }
}
