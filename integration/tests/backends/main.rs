//! The three backends in one namespace: each replaces the others' rules completely; and the probe's findings about them
//! on this machine's kernel.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod replacing;

use gybe_integration::namespace::{in_new_namespace, sh};
use gybe_integration::programs;
use gybe_netfilter::access::NamespaceAccess;
use gybe_netfilter::apply::backend::{Backend, BackendError, BackendKind};
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::inventory::{Inventory, PreviousRules};
use gybe_netfilter::model::ruleset::Ruleset;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::probe::choose::{BackendSetting, choose};
use gybe_netfilter::probe::{Capabilities, Finding, Profile, try_out};
use std::net::{TcpListener, TcpStream};

fn patient(kind: BackendKind) -> Box<dyn Backend> {
    programs::patient(kind).unwrap()
}

#[test]
fn every_profile_works_with_every_backend_on_this_kernel() {
    for kind in BackendKind::ALL {
        for profile in Profile::EVERY {
            let finding = try_out(&*patient(kind), profile).unwrap();
            assert_eq!(finding, Finding::Works, "{kind} {profile}");
        }
    }
}

/// A backend that connects to the namespace's IPv6 address before it writes rules.
struct ConnectsFirst;

impl Backend for ConnectsFirst {
    fn kind(&self) -> BackendKind {
        BackendKind::Nft
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Nft.open()
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("2001:db8::1", port)).unwrap();
        Nft.write(access, rules)
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        Nft.clear(access)
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Nft.read(access)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Nft.desired(rules)
    }
}

/// An IPv6 address on `lo` becomes reachable some time after it is added: without waiting, a third of the connections
/// failed.
#[test]
fn the_probes_destination_is_reachable_before_rules_are_written() {
    for _ in 0..40 {
        assert_eq!(try_out(&ConnectsFirst, Profile::V4AndV6).unwrap(), Finding::Works);
    }
}

#[test]
fn probing_writes_nothing_into_the_callers_namespace() {
    in_new_namespace(|| {
        let (before, here) = (sh("nft list ruleset; ip addr; ip rule"), Netns::of_this_thread().unwrap());
        let mut known = Capabilities::default();
        known.probe(BackendKind::Nft).unwrap();
        assert!(known.backends.get(BackendKind::Nft).unwrap().values().all(Finding::works), "{known:?}");
        assert_eq!(sh("nft list ruleset; ip addr; ip rule"), before);
        assert!(Netns::of_this_thread().unwrap().is_same_as(&here));
        assert_eq!(choose(&known, BackendSetting::Auto).unwrap().backend, BackendKind::Nft);
    });
}

/// A backend that omits some rules and reports all of them as present.
struct OmitsRules {
    /// The prefix of the ids of the omitted rules, or `all`.
    omitted: &'static str,
}

impl OmitsRules {
    fn remaining(&self, rules: &Ruleset) -> Ruleset {
        let mut rules = rules.clone();
        for chain in &mut rules.chains {
            chain.rules.retain(|rule| self.omitted != "all" && !rule.id.0.starts_with(self.omitted));
        }
        rules
    }
}

impl Backend for OmitsRules {
    fn kind(&self) -> BackendKind {
        BackendKind::Nft
    }

    fn open(&self) -> Result<NamespaceAccess, BackendError> {
        Nft.open()
    }

    fn write(&self, access: &mut NamespaceAccess, rules: &Ruleset) -> Result<PreviousRules, BackendError> {
        Nft.write(access, &self.remaining(rules))
    }

    fn clear(&self, access: &mut NamespaceAccess) -> Result<(), BackendError> {
        Nft.clear(access)
    }

    fn read(&self, access: &mut NamespaceAccess) -> Result<Inventory, BackendError> {
        Nft.read(access)
    }

    fn desired(&self, rules: &Ruleset) -> Result<Inventory, BackendError> {
        Nft.desired(&self.remaining(rules))
    }
}

/// The control: without the rule that a connection tests, the probe finds that the profile misbehaves.
#[test]
fn each_profile_detects_a_missing_rule() {
    for (profile, omitted, sentence) in [
        (Profile::V4, "all", "TCP to 192.0.2.1:80 by the application should have arrived on port 15001"),
        (
            Profile::V4,
            "own-pod-proxy-uid",
            "TCP to 192.0.2.1:15008 by the proxy should have arrived on port 15008",
        ),
        (
            Profile::V4,
            "proxy-to-own-pod-v4",
            "TCP to 192.0.2.1:80 by the proxy should have arrived on port 15006",
        ),
        (Profile::V4AndV6, "outbound-to-proxy-v6", "TCP to [2001:db8::1]:80 by the application"),
        (Profile::Dns, "dns-to-agent", "TCP to 192.0.2.1:53 by the application"),
        (Profile::Dns, "zone-proxy-uid-queries", "UDP to 192.0.2.1:53 by the proxy"),
        (Profile::Dns, "zone-proxy-uid-answers", "UDP to 192.0.2.1:53 by the application"),
        (Profile::Tproxy, "intercept-v4", "TCP to 192.0.2.1:80 by a marked socket"),
        (Profile::Lists, "outbound-excluded-port", "TCP to 192.0.2.1:8050 by the application"),
        (Profile::Lists, "outbound-excluded-v4", "TCP to 192.0.2.65:80 by the application"),
    ] {
        let known = profile.redirection().rules.rules().any(|(_, rule)| rule.id.0.starts_with(omitted));
        assert!(known || omitted == "all", "{profile} has no rule {omitted}");
        let finding = try_out(&OmitsRules { omitted }, profile).unwrap();
        let Finding::Misbehaves(what) = &finding else { panic!("{profile} without {omitted}: {finding:?}") };
        assert!(what.starts_with(sentence), "{profile} without {omitted}: {what}");
    }
}
