//! No agent at all: the plugin has the API server asked by a kubeconfig.

use crate::ground::{Ground, Outcome, STATUS};
use gybe_api_server::{Network, Verb};
use serde_json::{Value, json};

fn add(ground: &Ground, name: &str) -> Outcome {
    let facts: Value = json!({ "socket": "", "kubeconfig": ground.kubeconfig, "deadline_ms": 2000 });
    ground.add(name, &json!({ STATUS: "{}" }), Some(facts))
}

fn refused(ground: &Ground, code: u64, words: &str) {
    match add(ground, "cart-0") {
        Outcome::Refused(told, why) if told == code && why.contains(words) => {}
        other => panic!("{code} {words:?}: {other:?}"),
    }
}

#[test]
fn a_pod_is_redirected_by_what_gybe_pod_facts_learns() {
    let ground = Ground::new("alone");
    refused(&ground, 11, "GYBE-ADD-017");
    ground.put("cart-0");
    assert_eq!(add(&ground, "cart-0"), Outcome::Passed);
    let gets = ground.server.requests().len();
    assert_eq!(gets, 2, "{:?}", ground.server.requests());
}

#[test]
fn what_stands_between_is_told() {
    let ground = Ground::new("alone-refused");
    ground.put("cart-0");
    ground.server.forbid(Verb::Get, "pods");
    refused(&ground, 11, "said 403");
    ground.server.tokens().revoke_all();
    refused(&ground, 11, "said 401");
    ground.server.network(Network::Unreachable).unwrap();
    refused(&ground, 11, "did not answer within");
    std::fs::remove_file(&ground.kubeconfig).unwrap();
    refused(&ground, 7, "kubeconfig cannot be read");
}
