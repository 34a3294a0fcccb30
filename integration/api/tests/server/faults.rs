//! Simulated faults: network, certificate, token, responses.

use crate::client::{Client, TIMEOUT};
use crate::lists::pod;
use gybe_api_server::{ApiServer, Fault, FaultKind, Network, Validity, Verb};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

const POD: &str = "/api/v1/namespaces/shop/pods/a";

/// Shorter than one second, after which the kernel repeats a lost SYN.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

fn cluster() -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.put_pod(pod("a", "here"));
    server
}

#[test]
fn f02_f03_invalid_tokens_are_refused_with_401_and_their_watches_go_on() {
    let server = cluster();
    for off in [Validity::NotYetValid, Validity::Expired] {
        assert_eq!(Client::with_token(&server, server.tokens().issue(off)).get(POD).code, 401, "{off:?}");
    }
    let token = server.tokens().issue(Validity::Valid);
    let client = Client::with_token(&server, token.clone());
    let mut watch = client.get("/api/v1/pods?watch=1");
    assert_eq!(watch.event()["type"], "ADDED");
    server.tokens().revoke(&token);
    assert_eq!(client.get(POD).code, 401);
    assert_eq!(Client::new(&server).get(POD).code, 200);
    server.delete_pod("shop", "a");
    assert_eq!(watch.event()["type"], "DELETED");
    server.tokens().revoke_all();
    server.tokens().restore_all();
    server.put_pod(pod("a", "here"));
    assert_eq!(client.get(POD).code, 200);
}

#[test]
fn f03_clients_reject_certificates_outside_their_period_of_validity() {
    let server = cluster();
    let client = Client::new(&server);
    for (off, reason) in [(Validity::NotYetValid, "NotValidYet"), (Validity::Expired, "Expired")] {
        server.present_certificate(off).unwrap();
        let failed = client.try_get(POD, TIMEOUT).err().unwrap();
        assert!(format!("{failed:?}").contains(reason), "{failed:?}");
    }
    server.present_certificate(Validity::Valid).unwrap();
    assert_eq!(client.get(POD).code, 200);
}

#[test]
fn f01_each_network_fault_fails_as_expected_and_can_be_undone() {
    let server = cluster();
    let client = Client::new(&server);
    for (broken, kind) in [
        (Network::Unreachable, ErrorKind::TimedOut),
        (Network::Silent, ErrorKind::WouldBlock),
        (Network::Refusing, ErrorKind::ConnectionRefused),
    ] {
        let mut watch = client.get("/api/v1/pods?watch=1");
        assert_eq!(watch.event()["type"], "ADDED");
        server.set_network(broken).unwrap();
        server.put_pod(pod("a", "there"));
        let failed = client.try_get(POD, SHORT_TIMEOUT).err().unwrap();
        assert_eq!(failed.kind(), kind, "{broken:?}");
        server.set_network(Network::Open).unwrap();
        assert_eq!(client.get(POD).code, 200, "{broken:?}");
        // A silent connection goes on; a closed one stays closed.
        let event = watch.chunk();
        assert_eq!(event.is_ok(), broken != Network::Refusing, "{broken:?}: {event:?}");
    }
}

#[test]
fn requests_can_be_delayed_unanswered_or_disconnected() {
    let server = cluster();
    let client = Client::new(&server);
    server.add_fault(Fault::always(FaultKind::Slow(SHORT_TIMEOUT)).times(1));
    let before = Instant::now();
    assert_eq!(client.get(POD).code, 200);
    assert!(before.elapsed() >= SHORT_TIMEOUT);
    server.add_fault(Fault::always(FaultKind::Silent).at(Verb::Get));
    assert_eq!(client.try_get(POD, SHORT_TIMEOUT).err().unwrap().kind(), ErrorKind::WouldBlock);
    assert_eq!(client.get("/api/v1/pods").code, 200);
    server.clear_faults();
    server.add_fault(Fault::always(FaultKind::Disconnects).times(1));
    assert!(client.try_get(POD, TIMEOUT).is_err());
    assert_eq!(client.get(POD).code, 200);
}

#[test]
fn requests_can_fail_with_the_responses_of_an_overloaded_server() {
    let server = cluster();
    let client = Client::new(&server);
    server.add_fault(Fault::always(FaultKind::TooManyRequests(7)).times(2));
    for _ in 0..2 {
        let refused = client.get(POD);
        assert_eq!((refused.code, refused.header("retry-after")), (429, Some("7")));
        assert_eq!(refused.text(), "Too many requests, please try again later.\n");
    }
    for (code, reason) in [(500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")] {
        server.add_fault(Fault::always(FaultKind::Fails(code)).times(1));
        let failed = client.get(POD);
        assert_eq!(failed.code, code);
        let status = failed.json();
        assert_eq!((&status["code"], &status["reason"]), (&code.into(), &reason.into()));
    }
    server.add_fault(Fault::always(FaultKind::Fails(502)).times(1));
    assert!(client.get(POD).header("content-type").unwrap().starts_with("text/plain"));
    server.forbid(Verb::Get, "pods");
    assert_eq!(client.get(POD).json()["reason"], "Forbidden");
    server.permit(Verb::Get, "pods");
    assert_eq!(client.get(POD).code, 200);
}
