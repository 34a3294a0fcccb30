//! A file of libcni's cache.
#![no_main]

use gybe_fuzz::host::json;
use gybe_fuzz::host::observe::result_cache::plugins;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let named = plugins(input);
    // A plugin is named by a member `type` of the conf, which base64 makes a third longer.
    assert!(named.is_empty() || json::parse(input).is_ok());
    assert!(named.len() * 8 <= input.len(), "{} plugins in {} bytes", named.len(), input.len());
});
