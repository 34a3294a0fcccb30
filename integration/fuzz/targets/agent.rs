//! Questions and replies of the facts socket: what is parsed is written as the same value again.
#![no_main]

use gybe_plugin::facts::wire;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match wire::decode_response(bytes) {
        Ok(answer) => {
            let again = wire::encode_response(&answer);
            assert!(again.ends_with('\n') && again.trim_end().lines().count() == 1, "{again:?}");
            assert_eq!(wire::decode_response(again.as_bytes()), Ok(answer));
        }
        // The error quotes nothing of the reply: it may hold what must not be logged.
        Err(why) => assert!(why.to_string().len() < 200, "{why}"),
    }
    if let Ok(asked) = wire::decode_request(bytes) {
        let question = wire::encode_request(&asked);
        assert_eq!(wire::decode_request(question.as_bytes()), Ok(asked));
    }
});
