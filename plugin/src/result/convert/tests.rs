//! 135 conversions recorded from the reference library, and members that it drops.

use super::*;

#[derive(serde::Deserialize)]
struct ConversionCase {
    name: String,
    input: Members,
    target: String,
    output: Option<Value>,
    error: Option<String>,
}

fn cases() -> Vec<ConversionCase> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../integration/vectors/cni/result-conversions.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn converted(input: &Members, target: &str) -> Result<Value, ConvertError> {
    let from = Format::of(input["cniVersion"].as_str().unwrap()).unwrap();
    convert(input.clone(), from, target).map(Value::Object)
}

#[test]
fn every_recorded_conversion_equals_the_reference_librarys() {
    let cases = cases();
    assert_eq!(cases.len(), 135);
    for case in cases {
        let made = converted(&case.input, &case.target);
        assert_eq!(made.is_err(), case.error.is_some(), "{} to {:?}: {made:?}", case.name, case.target);
        assert_eq!(made.ok(), case.output, "{} to {:?}", case.name, case.target);
    }
}

#[test]
fn members_that_no_version_defines_survive_every_conversion() {
    let strange = json!({ "deep": [1, 2.5, "ü", 18_446_744_073_709_551_615u64, null] });
    let original = json!({
        "cniVersion": "0.4.0", "io.example/x": strange,
        "ips": [{ "version": "4", "address": "10.0.0.1/8", "io.example/x": strange }],
        "routes": [{ "dst": "0.0.0.0/0", "io.example/x": strange }],
        "dns": { "nameservers": ["10.0.0.2"], "io.example/x": strange },
    });
    let mut result = original;
    for target in ["0.3.0", "1.1.0", "1.0.0", "0.2.0", "0.1.0", "1.1.0", "0.4.0", "0.2.0", "0.3.1", "1.0.0"] {
        result = converted(result.as_object().unwrap(), target).unwrap();
        let (ip, route) = if target < "0.3" {
            (result["ip4"].clone(), result["ip4"]["routes"][0].clone())
        } else {
            (result["ips"][0].clone(), result["routes"][0].clone())
        };
        for part in [&result, &ip, &route, &result["dns"]] {
            assert_eq!(part["io.example/x"], strange, "{target}: {result}");
        }
    }
}

#[test]
fn an_invalid_result_is_refused_by_its_invalid_member() {
    for (result, part) in [
        (json!({ "ips": [{ "address": "10.0.0.1" }] }), "an address"),
        (json!({ "ips": [{ "address": "10.0.0.1/33" }] }), "an address"),
        (json!({ "ips": [{ "address": "10.0.0.1/+8" }] }), "an address"),
        (json!({ "ips": [{}] }), "an address"),
        (json!({ "ips": {} }), "ips"),
        (json!({ "ips": [1] }), "ips"),
        (json!({ "routes": [{ "dst": "default" }] }), "an address"),
        (json!({ "interfaces": "eth0" }), "interfaces"),
        (json!({ "dns": [] }), "dns"),
    ] {
        for version in ["0.2.0", "0.4.0", "1.1.0"] {
            let fault = convert(result.as_object().unwrap().clone(), Format::PlainIps, version).unwrap_err();
            assert!(
                matches!(fault, ConvertError::Part { part: named, .. } if named == part),
                "{result}: {fault}"
            );
        }
    }
}
