//! What the agent reads of ztunnel: a hello and the responses.
#![no_main]

use gybe_fuzz::agent::ztunnel::messages::{decode_hello, decode_response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    if let Err(why) = decode_hello(packet) {
        assert!(why.to_string().len() < 200, "{why}");
    }
    match decode_response(packet) {
        Ok(Ok(())) => assert!(!packet.is_empty(), "an acknowledgement is a message"),
        Ok(Err(text)) => assert!((1..packet.len()).contains(&text.len()), "{text:?}"),
        Err(why) => assert!(why.to_string().len() < 200, "{why}"),
    }
});
