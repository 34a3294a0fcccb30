//! A call by the runtime: variables as lines `NAME=value`, an empty line, and the bytes of stdin.
#![no_main]

use gybe_plugin::conf::{PluginConf, unknown_keys};
use gybe_plugin::request::{CniVariables, Request, RequestError};
use gybe_plugin::{result, version};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Members that some version of the specification lacks, or has in another form.
const VERSION_DEPENDENT: [&str; 7] = ["cniVersion", "ip4", "ip6", "ips", "routes", "interfaces", "dns"];

fuzz_target!(|input: &[u8]| {
    let cut = input.windows(2).position(|two| two == b"\n\n").unwrap_or(input.len());
    let variables = String::from_utf8_lossy(&input[..cut]).into_owned();
    let env: CniVariables = variables.lines().filter_map(|line| line.split_once('=')).collect();
    let command = env.text("CNI_COMMAND").unwrap_or_default();
    let stdin = || Ok::<_, RequestError>(input.get(cut + 2..).unwrap_or_default());
    let Ok(request) = Request::parse(&command, &env, stdin) else { return };
    assert_eq!(request.verb.as_str(), command);
    let members = request.network.members();
    let _ = unknown_keys(members);
    if version::check(request.verb, request.network.version()).is_err() {
        return;
    }
    if let (Ok(conf), Ok(again)) = (PluginConf::read(members), PluginConf::read(members)) {
        assert_eq!(conf, again);
    }
    let before = request.network.member("prevResult");
    if let Ok(handed_on) = result::for_reply(before.cloned(), request.network.version()) {
        assert_unknown_members_are_kept(before, &handed_on);
    }
});

/// Members that the specification does not define are passed on unchanged.
fn assert_unknown_members_are_kept(before: Option<&Value>, after: &Value) {
    for (key, value) in before.and_then(Value::as_object).into_iter().flatten() {
        if !VERSION_DEPENDENT.contains(&key.as_str()) {
            assert_eq!(after.get(key), Some(value), "{key}");
        }
    }
}
