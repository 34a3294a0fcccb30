//! What a call must have, as tables.

use super::*;

const ENTRY: &[u8] = br#"{"cniVersion": "1.0.0", "name": "net", "type": "gybe-cni"}"#;

fn call(changes: &[(&str, &str)]) -> Environment {
    let whole = [
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    whole.into_iter().chain(changes.iter().copied()).collect()
}

fn parse(verb: &str, env: &Environment) -> Result<Request, RequestError> {
    Request::parse(verb, env, || Ok(ENTRY))
}

#[test]
fn every_missing_variable_is_named_at_once() {
    let none = Environment::default();
    for (verb, missing) in [
        ("ADD", "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"),
        ("CHECK", "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"),
        ("DEL", "[CNI_CONTAINERID,CNI_IFNAME,CNI_PATH]"),
        ("GC", "[CNI_PATH]"),
        ("STATUS", "[CNI_PATH]"),
    ] {
        let fault = parse(verb, &none).unwrap_err();
        assert_eq!(fault.to_string(), format!("required env variables {missing} missing"), "{verb}");
    }
}

#[test]
fn an_empty_variable_is_a_missing_one() {
    assert!(parse("ADD", &call(&[("CNI_NETNS", "")])).is_err());
    assert!(parse("DEL", &call(&[("CNI_NETNS", "")])).is_ok());
}

#[test]
fn a07_names_that_could_leave_their_place_are_refused() {
    for (variable, value) in [
        ("CNI_CONTAINERID", ".."),
        ("CNI_CONTAINERID", "a/b"),
        ("CNI_CONTAINERID", "-a"),
        ("CNI_CONTAINERID", "a\n"),
        ("CNI_CONTAINERID", "é"),
        ("CNI_IFNAME", "."),
        ("CNI_IFNAME", ".."),
        ("CNI_IFNAME", "a/b"),
        ("CNI_IFNAME", "a:b"),
        ("CNI_IFNAME", "a\u{a0}b"),
        ("CNI_IFNAME", "abcdefghijklmnop"),
    ] {
        for verb in ["ADD", "CHECK", "DEL"] {
            let fault = parse(verb, &call(&[(variable, value)])).unwrap_err();
            assert!(fault.to_string().contains(variable), "{verb} {value:?}: {fault}");
        }
    }
}

#[test]
fn a_verb_that_is_about_no_container_needs_none_named() {
    let only_path: Environment = [("CNI_PATH", "/opt/cni/bin")].into_iter().collect();
    for verb in ["GC", "STATUS"] {
        assert!(parse(verb, &only_path).is_ok(), "{verb}");
    }
}

#[test]
fn only_upper_case_verbs_are_verbs() {
    for command in ["add", "FOO", "ADD ", "Version"] {
        let fault = parse(command, &call(&[])).unwrap_err();
        assert!(matches!(fault, RequestError::UnknownVerb(_)), "{command}");
    }
}

#[test]
fn the_plugins_own_namespace_is_allowed_only_by_the_override() {
    for (word, want) in [
        ("1", OwnNamespace::Allowed),
        ("TRUE", OwnNamespace::Allowed),
        ("true", OwnNamespace::Allowed),
        ("0", OwnNamespace::Refused),
        ("yes", OwnNamespace::Refused),
        ("", OwnNamespace::Refused),
    ] {
        let request = parse("ADD", &call(&[("CNI_NETNS_OVERRIDE", word)])).unwrap();
        assert_eq!(request.own_namespace, want, "{word:?}");
    }
}

#[test]
fn variables_of_others_are_not_kept() {
    let env: Environment = [("PATH", "/bin"), ("CNI_PATH", "/opt")].into_iter().collect();
    assert_eq!((env.get("PATH"), env.text("CNI_PATH").as_deref()), (None, Some("/opt")));
}
