//! The watch if authentication or authorization fails: tokens, certificates, RBAC.

use crate::ground::{asked, becomes, knows, meshed};
use crate::scene::{is_back, scene, status, well};
use gybe_api_server::{Network, Validity, Verb};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn f02_ten_token_rotations_under_load_fail_no_query() {
    let (ground, watched) = scene("rotations");
    for i in 0..8 {
        let mut elsewhere = meshed(&format!("far-{i}"), "u1");
        elsewhere["spec"]["nodeName"] = "node-2".into();
        ground.server.put_pod(elsewhere);
    }
    let (stop, watched) = (&AtomicBool::new(false), &watched);
    thread::scope(|scope| {
        for i in 0..8 {
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    // The first pod is in the cache; the agent gets the second with its current token.
                    knows(watched, "cart-0", "u0");
                    knows(watched, &format!("far-{i}"), "u1");
                }
            });
        }
        for _ in 0..10 {
            let gets = ground.server.requests().len();
            ground.rotate();
            ground.server.cut_watches();
            ground.asked(|requests| requests.len() > gets + 16);
        }
        stop.store(true, Ordering::SeqCst);
    });
    is_back(&ground, watched, "cart-1");
    let requests = ground.server.requests();
    let refused = requests.iter().filter(|request| request.code == Some(401)).count();
    println!("{} requests, {refused} of them refused once and repeated with the new token", requests.len());
    assert!(requests.len() > 160, "{}", requests.len());
}

#[test]
fn f03_a_token_that_is_not_valid_yet_is_reported_and_the_next_one_is_used() {
    let (ground, watched) = scene("not-yet");
    ground.server.tokens().revoke_all();
    ground.account.write(&ground.server.tokens().issue(Validity::NotYetValid)).unwrap();
    ground.server.cut_watches();
    becomes(&watched, |state| status(state) == Some(401));
    knows(&watched, "cart-0", "u0");
    let told = format!("{:?}", asked(&watched, "cart-1", "u1").unwrap_err());
    assert!(told.contains("401"), "{told}");
    ground.rotate();
    is_back(&ground, &watched, "cart-1");
}

#[test]
fn f03_an_expired_certificate_is_reported_and_the_next_one_is_trusted() {
    let (ground, watched) = scene("certificate");
    for off in [Validity::NotYetValid, Validity::Expired] {
        ground.server.present_certificate(off).unwrap();
        ground.server.set_network(Network::Refusing).unwrap();
        ground.server.set_network(Network::Open).unwrap();
        becomes(&watched, |state| {
            state.problem.as_ref().is_some_and(|trouble| trouble.sentence.contains("certificate"))
        });
        knows(&watched, "cart-0", "u0");
        ground.server.present_certificate(Validity::Valid).unwrap();
        becomes(&watched, well);
    }
    is_back(&ground, &watched, "cart-1");
}

#[test]
fn a_missing_right_is_reported_and_retried() {
    for verb in [Verb::List, Verb::Watch] {
        let (ground, watched) = scene(&format!("right-{verb:?}"));
        ground.server.forbid(verb, "pods");
        ground.server.compact();
        ground.put("cart-1", "u1");
        ground.server.expire_watches();
        becomes(&watched, |state| status(state) == Some(403));
        knows(&watched, "cart-0", "u0");
        let sentence = watched.state().problem.unwrap().sentence;
        assert!(sentence.contains("gybe-node") && sentence.contains("pods"), "{sentence}");
        ground.server.permit(verb, "pods");
        is_back(&ground, &watched, "cart-2");
    }
}
