//! The files' own form: the fields as they are named there, and nothing of what they mean together.

use super::{Flow, Place};
use gybe_installer::testnet::fate::FateError;
use gybe_netfilter::trace::{Owner, Transport};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::net::{IpAddr, SocketAddr};

#[derive(Deserialize)]
pub(super) struct WrittenVector {
    pub(super) name: String,
    pub(super) options: Map<String, Value>,
    pub(super) flows: Vec<WrittenFlow>,
}

/// Flows of our own making, for rules that no recorded flow needs: under recorded policies, or under
/// one of our own.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum WrittenFurther {
    Flows { policies: Vec<String>, flows: Vec<WrittenFlow> },
    Policy(WrittenVector),
}

#[derive(Deserialize)]
pub(super) struct WrittenFlow {
    pub(super) id: String,
    from: Place,
    proto: WrittenTransport,
    dst: IpAddr,
    port: u16,
    uid: u32,
    gid: u32,
    src: Option<IpAddr>,
    sport: Option<u16>,
    mark: Option<u32>,
    without_rules: String,
    expect: Option<String>,
    expect_iptables: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenTransport {
    Tcp,
    Udp,
}

impl WrittenFlow {
    pub(super) fn parse(&self) -> Result<Flow, FateError> {
        let expected = self.expect_iptables.as_ref().or(self.expect.as_ref()).map_or("", String::as_str);
        Ok(Flow {
            id: self.id.clone(),
            from: self.from,
            transport: match self.proto {
                WrittenTransport::Tcp => Transport::Tcp,
                WrittenTransport::Udp => Transport::Udp,
            },
            to: SocketAddr::new(self.dst, self.port),
            owner: Owner { uid: self.uid, gid: self.gid },
            source: self.src,
            source_port: self.sport,
            mark: self.mark,
            without_rules: self.without_rules.parse()?,
            with_rules: expected.parse()?,
        })
    }
}
