use super::*;
use crate::model::policy::CidrSet;
use crate::probe::Refusal;
use BackendKind::{IptablesLegacy, IptablesNft, Nft};

fn refused(why: &str) -> Finding {
    Finding::Refused(Refusal { why: why.to_owned(), hint: Some(format!("mend {why}")), ..Refusal::default() })
}

/// Every profile works except these.
fn findings(exceptions: &[(Profile, Finding)]) -> Findings {
    let all = Profile::ALL.map(|profile| (profile, Finding::Works));
    all.into_iter().chain(exceptions.iter().cloned()).collect()
}

fn capabilities(backends: &[(BackendKind, Findings)]) -> Capabilities {
    Capabilities { backends: backends.iter().cloned().collect(), ..Capabilities::default() }
}

fn policy(change: impl FnOnce(&mut RedirectPolicy)) -> RedirectPolicy {
    let mut policy = Profile::V4.policy();
    change(&mut policy);
    policy
}

#[test]
fn the_first_backend_with_which_the_essential_profiles_work_is_chosen() {
    let (all, none) = (|| findings(&[]), || findings(&[(Profile::V4, refused("v4"))]));
    let partial = || findings(&[(Profile::Tproxy, refused("tproxy")), (Profile::V4AndV6, refused("v6"))]);
    let without_lists = || findings(&[(Profile::Lists, Finding::Misbehaves("x".into()))]);
    let (auto, iptables) = (BackendSetting::Auto, BackendSetting::Iptables);
    for (backends, setting, chosen) in [
        (vec![(Nft, all()), (IptablesNft, all()), (IptablesLegacy, all())], auto, Some(Nft)),
        (vec![(Nft, all())], auto, Some(Nft)),
        // nftables with an optional profile missing comes before iptables with every profile.
        (vec![(Nft, partial()), (IptablesNft, all())], auto, Some(Nft)),
        (vec![(Nft, none()), (IptablesNft, all()), (IptablesLegacy, all())], auto, Some(IptablesNft)),
        (
            vec![(Nft, without_lists()), (IptablesNft, none()), (IptablesLegacy, all())],
            auto,
            Some(IptablesLegacy),
        ),
        (vec![(Nft, none()), (IptablesNft, none()), (IptablesLegacy, none())], auto, None),
        (vec![(Nft, none())], auto, None),
        (vec![(Nft, all()), (IptablesNft, all()), (IptablesLegacy, all())], iptables, Some(IptablesNft)),
        (vec![(Nft, all()), (IptablesNft, none()), (IptablesLegacy, all())], iptables, Some(IptablesLegacy)),
        (vec![(Nft, all()), (IptablesNft, none()), (IptablesLegacy, none())], iptables, None),
        (
            vec![(Nft, all()), (IptablesLegacy, all())],
            BackendSetting::Only(IptablesLegacy),
            Some(IptablesLegacy),
        ),
        (vec![(Nft, none()), (IptablesNft, all())], BackendSetting::Only(Nft), None),
    ] {
        let capabilities = capabilities(&backends);
        let found = choose(&capabilities, setting);
        assert_eq!(found.as_ref().ok().map(|choice| choice.backend), chosen, "{setting} {capabilities:?}");
        assert!(found.is_ok() || !found.unwrap_err().hint().unwrap().is_empty());
    }
}

#[test]
fn no_backend_is_probed_that_the_choice_does_not_need() {
    let (all, none) = (|| findings(&[]), || findings(&[(Profile::V4, refused("v4"))]));
    let not_loaded = || Profile::ALL.map(|profile| (profile, Finding::NotLoaded)).into_iter().collect();
    for (backends, setting, to_probe) in [
        (vec![], BackendSetting::Auto, Some(Nft)),
        (vec![(Nft, all())], BackendSetting::Auto, None),
        (vec![(Nft, none())], BackendSetting::Auto, Some(IptablesNft)),
        (vec![(Nft, none()), (IptablesNft, none())], BackendSetting::Auto, Some(IptablesLegacy)),
        (vec![(Nft, none()), (IptablesNft, none()), (IptablesLegacy, none())], BackendSetting::Auto, None),
        (vec![(Nft, all())], BackendSetting::Iptables, Some(IptablesNft)),
        (vec![(Nft, all()), (IptablesNft, all())], BackendSetting::Iptables, None),
        (vec![(Nft, all())], BackendSetting::Only(IptablesLegacy), Some(IptablesLegacy)),
        // `auto` probes no backend that needs a module load; a backend that the operator names is probed.
        (
            vec![(Nft, none()), (IptablesNft, none()), (IptablesLegacy, not_loaded())],
            BackendSetting::Auto,
            None,
        ),
        (vec![(IptablesLegacy, not_loaded())], BackendSetting::Only(IptablesLegacy), Some(IptablesLegacy)),
        (vec![(IptablesLegacy, none())], BackendSetting::Only(IptablesLegacy), None),
    ] {
        assert_eq!(next(&capabilities(&backends), setting), to_probe, "{setting} {backends:?}");
    }
}

#[test]
fn a_choice_has_a_reason_and_a_refusal_has_a_hint() {
    let broken = || findings(&[(Profile::V4, refused("no nat"))]);
    let choice =
        choose(&capabilities(&[(Nft, broken()), (IptablesNft, findings(&[]))]), BackendSetting::Auto)
            .unwrap();
    assert_eq!(choice.why, "auto: iptables-nft does everything; nft: v4 refused: no nat");
    let refusal = choose(&capabilities(&[(Nft, broken())]), BackendSetting::Only(Nft)).unwrap_err();
    assert_eq!(refusal.to_string(), "no backend works on this node for nft: nft: v4 refused: no nat");
    assert_eq!(refusal.hint().unwrap(), "mend no nat");
    let not_loaded = capabilities(&[(IptablesLegacy, findings(&[(Profile::V4, Finding::NotLoaded)]))]);
    let refusal = choose(&not_loaded, BackendSetting::Auto).unwrap_err();
    assert!(refusal.to_string().ends_with("v4 not tried: this kernel has no ip_tables loaded"), "{refusal}");
    assert!(refusal.hint().unwrap().contains("modprobe ip_tables"), "{refusal:?}");
    let works_elsewhere = capabilities(&[(Nft, findings(&[])), (IptablesNft, broken())]);
    let refusal = choose(&works_elsewhere, BackendSetting::Only(IptablesNft)).unwrap_err();
    assert!(refusal.hint().unwrap().contains("set backend to nft"), "{refusal:?}");
}

#[test]
fn a_policy_is_refused_for_what_it_needs_and_for_nothing_else() {
    let missing = [(Profile::Tproxy, refused("tproxy")), (Profile::V4AndV6, refused("v6"))];
    let choice = choose(&capabilities(&[(Nft, findings(&missing))]), BackendSetting::Auto).unwrap();
    assert_eq!(choice.variant(&policy(|_| ())), Ok(RuleVariant::Complete));
    assert_eq!(choice.variant(&policy(|policy| policy.dns = Dns::All)), Ok(RuleVariant::Complete));
    let no_ipv6 = choice.variant(&policy(|policy| policy.families = Families::V4AndV6)).unwrap_err();
    assert_eq!(
        no_ipv6.to_string(),
        "the pod's IPv6 must be redirected, which nft cannot do on this node: refused: v6"
    );
    let tproxy = Mode::Tproxy { mark: 1, route_table: 2 };
    assert!(choice.variant(&policy(|policy| policy.mode = tproxy)).is_err());
}

#[test]
fn an_ambient_policy_needs_marks_and_dns_only_where_it_is_captured() {
    let choice = |missing: &[(Profile, Finding)]| {
        choose(&capabilities(&[(Nft, findings(missing))]), BackendSetting::Auto).unwrap()
    };
    let ambient = |dns, families| AmbientPolicy { dns, families, ..AmbientPolicy::default() };
    let (v4, dual) = (Families::V4Only, Families::V4AndV6);
    let (off, captured) = (AmbientDns::Off, AmbientDns::Captured);
    let complete = Ok(RuleVariant::Complete);
    let no_marks = choice(&[(Profile::Tproxy, refused("mark"))]);
    assert!(no_marks.variant_of_ambient(&ambient(off, v4)).is_err());
    let no_ipv6 = choice(&[(Profile::V4AndV6, refused("v6"))]);
    assert_eq!(no_ipv6.variant_of_ambient(&ambient(captured, v4)), complete);
    assert!(no_ipv6.variant_of_ambient(&ambient(captured, dual)).is_err());
    let no_zones = choice(&[(Profile::Dns, refused("zones")), (Profile::DnsWithoutZones, Finding::Works)]);
    assert_eq!(no_zones.variant_of_ambient(&ambient(off, dual)), complete);
    assert_eq!(no_zones.variant_of_ambient(&ambient(captured, dual)), Ok(RuleVariant::WithoutZones));
}

#[test]
fn dns_is_captured_without_zones_if_the_probe_found_that_to_work() {
    let server = std::net::IpAddr::from([192, 0, 2, 53]);
    let with_dns = policy(|policy| policy.dns = Dns::Servers(CidrSet::from_iter([server])));
    let no_zones = (Profile::Dns, refused("zones"));
    let choice = |finding| {
        let findings = findings(&[no_zones.clone(), (Profile::DnsWithoutZones, finding)]);
        choose(&capabilities(&[(Nft, findings)]), BackendSetting::Auto).unwrap()
    };
    assert_eq!(choice(Finding::Works).variant(&with_dns), Ok(RuleVariant::WithoutZones));
    assert_eq!(choice(Finding::Works).variant(&policy(|_| ())), Ok(RuleVariant::Complete));
    assert!(choice(refused("dns too")).variant(&with_dns).is_err());
}

#[test]
fn every_backend_setting_parses_as_it_is_printed() {
    for setting in BackendSetting::ALL {
        assert_eq!(setting.to_string().parse(), Ok(setting));
        assert!(!setting.order().is_empty(), "{setting}");
    }
    for text in ["", "Auto", "legacy", "nftables"] {
        assert_eq!(text.parse::<BackendSetting>(), Err(UnknownBackendSetting), "{text}");
    }
}

#[test]
fn a_refused_policy_names_the_missing_part_or_the_command_that_lists_the_backends() {
    let refusal = Refusal { why: "no module".into(), ..Refusal::default() };
    let unsupported = |refusal| UnsupportedPolicy {
        need: "the pod asks for TPROXY",
        backend: Nft,
        found: Finding::Refused(refusal),
    };
    assert_eq!(
        unsupported(refusal.clone()).to_string(),
        "the pod asks for TPROXY, which nft cannot do on this node: refused: no module"
    );
    assert!(
        unsupported(refusal.clone()).hint().unwrap().starts_with("gybe probe lists the backends that can;")
    );
    let hinted = Refusal { hint: Some("this kernel lacks nft_tproxy".into()), ..refusal };
    assert_eq!(unsupported(hinted).hint().unwrap(), "this kernel lacks nft_tproxy");
}

#[test]
fn capabilities_are_per_backend_and_profile() {
    let partial = findings(&[(Profile::Tproxy, refused("tproxy"))]);
    assert!(flawless(&findings(&[])) && !flawless(&partial));
    let capabilities = capabilities(&[(Nft, partial)]);
    assert!(does(&capabilities, Nft, Profile::V4));
    assert!(!does(&capabilities, Nft, Profile::Tproxy));
    assert!(!does(&capabilities, IptablesNft, Profile::V4), "it was not probed");
}
