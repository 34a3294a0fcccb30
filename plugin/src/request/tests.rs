//! Tables of calls, whole and with faults.

use super::*;

const ENTRY: &[u8] = br#"{"cniVersion": "1.0.0", "name": "net", "type": "gybe-cni"}"#;

fn call(changes: &[(&str, &str)]) -> CniVariables {
    let complete = [
        ("CNI_CONTAINERID", "abc"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
    ];
    complete.into_iter().chain(changes.iter().copied()).collect()
}

fn parse(verb: &str, env: &CniVariables) -> Result<Request, RequestError> {
    Request::parse(verb, env, || Ok(ENTRY))
}

#[test]
fn all_missing_variables_are_named_together() {
    let none = CniVariables::default();
    for (verb, missing) in [
        ("ADD", "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"),
        ("CHECK", "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH]"),
        ("DEL", "[CNI_CONTAINERID,CNI_IFNAME,CNI_PATH]"),
        ("GC", "[CNI_PATH]"),
        ("STATUS", "[CNI_PATH]"),
    ] {
        let error = parse(verb, &none).unwrap_err();
        assert_eq!(error.to_string(), format!("required env variables {missing} missing"), "{verb}");
    }
}

#[test]
fn an_empty_variable_counts_as_missing() {
    assert!(parse("ADD", &call(&[("CNI_NETNS", "")])).is_err());
    assert!(parse("DEL", &call(&[("CNI_NETNS", "")])).is_ok());
}

#[test]
fn a07_names_unfit_for_a_path_are_refused() {
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
            let error = parse(verb, &call(&[(variable, value)])).unwrap_err();
            assert!(error.to_string().contains(variable), "{verb} {value:?}: {error}");
        }
    }
}

#[test]
fn gc_and_status_require_no_container() {
    let only_path: CniVariables = [("CNI_PATH", "/opt/cni/bin")].into_iter().collect();
    for verb in ["GC", "STATUS"] {
        assert!(parse(verb, &only_path).is_ok(), "{verb}");
    }
}

#[test]
fn a_verb_in_another_case_is_unknown() {
    for command in ["add", "FOO", "ADD ", "Version"] {
        let error = parse(command, &call(&[])).unwrap_err();
        assert!(matches!(error, RequestError::UnknownVerb(_)), "{command}");
    }
}

#[test]
fn the_plugins_own_namespace_is_allowed_only_by_the_override() {
    for (value, expected) in [
        ("1", OwnNamespace::Allowed),
        ("TRUE", OwnNamespace::Allowed),
        ("true", OwnNamespace::Allowed),
        ("0", OwnNamespace::Refused),
        ("yes", OwnNamespace::Refused),
        ("", OwnNamespace::Refused),
    ] {
        let request = parse("ADD", &call(&[("CNI_NETNS_OVERRIDE", value)])).unwrap();
        assert_eq!(request.own_namespace, expected, "{value:?}");
    }
}

#[test]
fn only_cni_variables_are_kept() {
    let env: CniVariables = [("PATH", "/bin"), ("CNI_PATH", "/opt")].into_iter().collect();
    assert_eq!((env.get("PATH"), env.text("CNI_PATH").as_deref()), (None, Some("/opt")));
}
