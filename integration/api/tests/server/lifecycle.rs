//! Start and stop of the server, and its log of requests.

use crate::client::{Client, TIMEOUT};
use gybe_api_server::{ApiServer, Bearer, Fault, FaultKind, Network, Validity};
use std::net::{Ipv6Addr, TcpStream};
use std::thread;

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
