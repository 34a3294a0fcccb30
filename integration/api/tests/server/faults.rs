//! Simulated faults: network, certificate, token, responses.

use crate::lists_and_watches::pod;
use crate::{Client, TIMEOUT};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gybe_api_server::{ApiServer, Bearer, Fault, FaultKind, Network, Validity, Verb};
use gybe_test_support::TestDir;
use serde_json::Value;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

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

#[test]
fn the_server_listens_on_ipv6() {
    let server = ApiServer::start_at(Ipv6Addr::LOCALHOST.into()).unwrap();
    assert!(server.url().starts_with("https://[::1]:"), "{}", server.url());
    assert_eq!(Client::new(&server).get("/api/v1/pods").code, 200);
}

#[test]
fn dropping_the_server_closes_all_sockets_in_every_network_state() {
    for network in [Network::Open, Network::Silent, Network::Refusing, Network::Unreachable] {
        let server = ApiServer::start().unwrap();
        let mut watch = Client::new(&server).get("/api/v1/pods?watch=1");
        server.set_network(network).unwrap();
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "{network:?}");
        assert!(watch.chunk().is_err(), "{network:?}");
    }
}

#[test]
fn every_request_is_logged_without_its_token() {
    let server = ApiServer::start().unwrap();
    let (first, second) =
        (server.tokens().issue(Validity::Valid), server.tokens().issue(Validity::NotYetValid));
    Client::with_token(&server, first).get("/api/v1/pods?limit=5");
    Client::with_token(&server, second.clone()).get("/api/v1/pods?watch=1");
    Client::anonymous(&server).get("/healthz");
    let requests = server.requests();
    let logged: Vec<_> =
        requests.iter().map(|it| (it.path.as_str(), it.query.as_str(), it.bearer, it.code)).collect();
    assert_eq!(
        logged,
        [
            ("/api/v1/pods", "limit=5", Bearer::Token(1), Some(200)),
            ("/api/v1/pods", "watch=1", Bearer::Token(2), Some(401)),
            ("/healthz", "", Bearer::Anonymous, Some(404)),
        ]
    );
    assert!(requests[0].is_list_of_pods() && requests[1].is_watch());
    assert!(!format!("{requests:?}{second:?}{:?}", server.tokens()).contains(second.text()));
}

#[test]
fn a_test_can_wait_for_a_request_that_is_never_answered() {
    let server = ApiServer::start().unwrap();
    server.add_fault(Fault::always(FaultKind::Silent));
    thread::scope(|scope| {
        scope.spawn(|| Client::new(&server).try_get("/api/v1/pods", TIMEOUT).is_err());
        assert!(server.wait_for_requests(TIMEOUT, |requests| requests.len() == 1));
        assert_eq!(server.requests()[0].code, None);
        server.set_network(Network::Refusing).unwrap();
    });
}

#[test]
fn a_service_account_token_is_replaced_as_the_kubelet_does() {
    let (server, directory) = (ApiServer::start().unwrap(), TestDir::new("account"));
    let account = server.service_account(&directory).unwrap();
    assert_eq!(account.path(), directory.path());
    assert_eq!(fs::read_link(directory.join("token")).unwrap(), Path::new("..data/token"));
    let before = (
        fs::read_link(directory.join("..data")).unwrap(),
        fs::read_to_string(directory.join("token")).unwrap(),
    );
    assert_eq!(fs::read_to_string(directory.join("ca.crt")).unwrap(), server.ca_pem());
    assert_eq!(fs::read_to_string(directory.join("namespace")).unwrap(), "gybe-system");
    let token = server.tokens().issue(Validity::Valid);
    account.write(&token).unwrap();
    assert_eq!(fs::read_to_string(directory.join("token")).unwrap(), token.text());
    assert_ne!(before.1, token.text());
    let mut names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    let now = fs::read_link(directory.join("..data")).unwrap();
    assert!(names.len() == 5 && names.contains(&now.clone().into_os_string()), "{names:?}");
    assert_ne!(before.0, now);
}

#[test]
fn a_kubeconfig_is_complete_and_readable_only_by_its_owner() {
    let (server, directory) = (ApiServer::start().unwrap(), TestDir::new("kubeconfig"));
    let path = server.kubeconfig(&directory).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let config: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let cluster = &config["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], server.url());
    let ca = STANDARD.decode(cluster["certificate-authority-data"].as_str().unwrap()).unwrap();
    assert_eq!(String::from_utf8(ca).unwrap(), server.ca_pem());
    assert!(config["users"][0]["user"]["token"].as_str().unwrap().starts_with("ey"));
}
