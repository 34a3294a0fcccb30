//! What can be wrong: the wire, the certificate, the token, the answers.

use crate::client::{Client, PATIENCE};
use crate::lists::pod;
use gybe_api_server::{ApiServer, Fault, Network, Trouble, Validity, Verb};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

const POD: &str = "/api/v1/namespaces/shop/pods/a";

/// Less than a second, after which a SYN that was lost is sent again.
const A_MOMENT: Duration = Duration::from_millis(300);

fn cluster() -> ApiServer {
    let server = ApiServer::start().unwrap();
    server.put_pod(pod("a", "here"));
    server
}

#[test]
fn f02_f03_tokens_that_do_not_count_are_401_and_their_watches_go_on() {
    let server = cluster();
    for off in [Validity::InTwoDays, Validity::UntilTwoDaysAgo] {
        assert_eq!(Client::with(&server, server.tokens().issue(off)).get(POD).code, 401, "{off:?}");
    }
    let token = server.tokens().issue(Validity::Now);
    let client = Client::with(&server, token.clone());
    let mut watch = client.get("/api/v1/pods?watch=1");
    assert_eq!(watch.event()["type"], "ADDED");
    server.tokens().revoke(&token);
    assert_eq!(client.get(POD).code, 401);
    assert_eq!(Client::of(&server).get(POD).code, 200);
    server.delete_pod("shop", "a");
    assert_eq!(watch.event()["type"], "DELETED");
    server.tokens().revoke_all();
    server.tokens().believe_all();
    server.put_pod(pod("a", "here"));
    assert_eq!(client.get(POD).code, 200);
}

#[test]
fn f03_certificates_that_are_days_off_are_not_trusted() {
    let server = cluster();
    let client = Client::of(&server);
    for (off, why) in [(Validity::InTwoDays, "NotValidYet"), (Validity::UntilTwoDaysAgo, "Expired")] {
        server.present(off).unwrap();
        let failed = client.try_get(POD, PATIENCE).err().unwrap();
        assert!(format!("{failed:?}").contains(why), "{failed:?}");
    }
    server.present(Validity::Now).unwrap();
    assert_eq!(client.get(POD).code, 200);
}

#[test]
fn f01_the_way_to_the_server_breaks_in_each_of_three_ways_and_heals() {
    let server = cluster();
    let client = Client::of(&server);
    for (broken, kind) in [
        (Network::Unreachable, ErrorKind::TimedOut),
        (Network::Mute, ErrorKind::WouldBlock),
        (Network::Refusing, ErrorKind::ConnectionRefused),
    ] {
        let mut watch = client.get("/api/v1/pods?watch=1");
        assert_eq!(watch.event()["type"], "ADDED");
        server.network(broken).unwrap();
        server.put_pod(pod("a", "there"));
        let failed = client.try_get(POD, A_MOMENT).err().unwrap();
        assert_eq!(failed.kind(), kind, "{broken:?}");
        server.network(Network::Open).unwrap();
        assert_eq!(client.get(POD).code, 200, "{broken:?}");
        // Silence ends where it began; what was cut stays cut.
        let event = watch.piece();
        assert_eq!(event.is_ok(), broken != Network::Refusing, "{broken:?}: {event:?}");
    }
}

#[test]
fn requests_are_slow_or_silent_or_cut() {
    let server = cluster();
    let client = Client::of(&server);
    server.fault(Fault::always(Trouble::Slow(A_MOMENT)).times(1));
    let before = Instant::now();
    assert_eq!(client.get(POD).code, 200);
    assert!(before.elapsed() >= A_MOMENT);
    server.fault(Fault::always(Trouble::Silent).at(Verb::Get));
    assert_eq!(client.try_get(POD, A_MOMENT).err().unwrap().kind(), ErrorKind::WouldBlock);
    assert_eq!(client.get("/api/v1/pods").code, 200);
    server.mend();
    server.fault(Fault::always(Trouble::Disconnects).times(1));
    assert!(client.try_get(POD, PATIENCE).is_err());
    assert_eq!(client.get(POD).code, 200);
}

#[test]
fn requests_fail_with_the_answers_of_a_server_in_need() {
    let server = cluster();
    let client = Client::of(&server);
    server.fault(Fault::always(Trouble::TooManyRequests(7)).times(2));
    for _ in 0..2 {
        let refused = client.get(POD);
        assert_eq!((refused.code, refused.header("retry-after")), (429, Some("7")));
        assert_eq!(refused.text(), "Too many requests, please try again later.\n");
    }
    for (code, reason) in [(500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout")] {
        server.fault(Fault::always(Trouble::Fails(code)).times(1));
        let failed = client.get(POD);
        assert_eq!(failed.code, code);
        let status = failed.json();
        assert_eq!((&status["code"], &status["reason"]), (&code.into(), &reason.into()));
    }
    server.fault(Fault::always(Trouble::Fails(502)).times(1));
    assert!(client.get(POD).header("content-type").unwrap().starts_with("text/plain"));
    server.forbid(Verb::Get, "pods");
    assert_eq!(client.get(POD).json()["reason"], "Forbidden");
    server.permit(Verb::Get, "pods");
    assert_eq!(client.get(POD).code, 200);
}
