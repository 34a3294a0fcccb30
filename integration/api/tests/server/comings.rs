//! The server's life, and its book of requests.

use crate::client::{Client, PATIENCE};
use gybe_api_server::{ApiServer, Bearer, Fault, Network, Trouble, Validity};
use std::net::{Ipv6Addr, TcpStream};
use std::thread;

#[test]
fn it_serves_ipv6_on_request() {
    let server = ApiServer::start_at(Ipv6Addr::LOCALHOST.into()).unwrap();
    assert!(server.url().starts_with("https://[::1]:"), "{}", server.url());
    assert_eq!(Client::of(&server).get("/api/v1/pods").code, 200);
}

#[test]
fn it_leaves_nothing_whatever_state_it_is_in() {
    for network in [Network::Open, Network::Mute, Network::Refusing, Network::Unreachable] {
        let server = ApiServer::start().unwrap();
        let mut watch = Client::of(&server).get("/api/v1/pods?watch=1");
        server.network(network).unwrap();
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "{network:?}");
        assert!(watch.piece().is_err(), "{network:?}");
    }
}

#[test]
fn every_request_is_written_down_without_its_token() {
    let server = ApiServer::start().unwrap();
    let (first, second) = (server.tokens().issue(Validity::Now), server.tokens().issue(Validity::InTwoDays));
    Client::with(&server, first).get("/api/v1/pods?limit=5");
    Client::with(&server, second.clone()).get("/api/v1/pods?watch=1");
    Client::anonymous(&server).get("/healthz");
    let requests = server.requests();
    let seen: Vec<_> =
        requests.iter().map(|it| (it.path.as_str(), it.query.as_str(), it.bearer, it.code)).collect();
    assert_eq!(
        seen,
        [
            ("/api/v1/pods", "limit=5", Bearer::Token(1), Some(200)),
            ("/api/v1/pods", "watch=1", Bearer::Token(2), Some(401)),
            ("/healthz", "", Bearer::Nobody, Some(404)),
        ]
    );
    assert!(requests[0].is_list_of_pods() && requests[1].is_watch());
    assert!(!format!("{requests:?}{second:?}{:?}", server.tokens()).contains(second.text()));
}

#[test]
fn a_test_can_wait_for_requests_also_for_those_that_are_never_answered() {
    let server = ApiServer::start().unwrap();
    server.fault(Fault::always(Trouble::Silent));
    thread::scope(|scope| {
        scope.spawn(|| Client::of(&server).try_get("/api/v1/pods", PATIENCE).is_err());
        assert!(server.requests_become(PATIENCE, |requests| requests.len() == 1));
        assert_eq!(server.requests()[0].code, None);
        server.network(Network::Refusing).unwrap();
    });
}
