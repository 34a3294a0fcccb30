//! What plugin and node agent say to each other: who understands it says the same again.
#![no_main]

use gybe_plugin::facts::wire;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|words: &[u8]| {
    match wire::decode_response(words) {
        Ok(answer) => {
            let again = wire::encode_response(&answer);
            assert!(again.ends_with('\n') && again.trim_end().lines().count() == 1, "{again:?}");
            assert_eq!(wire::decode_response(again.as_bytes()), Ok(answer));
        }
        // No word of theirs is in what is told of it: it may be what no log should hold.
        Err(why) => assert!(why.to_string().len() < 200, "{why}"),
    }
    if let Ok(asked) = wire::decode_request(words) {
        let question = wire::encode_request(&asked);
        assert_eq!(wire::decode_request(question.as_bytes()), Ok(asked));
    }
});
