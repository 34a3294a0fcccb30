//! Splits a list into its items as the bytes arrive. Pure.
//!
//! A server may send a node's whole list at once, which is megabytes; a cached pod has a few hundred bytes. So only one
//! item of a list is in memory at a time.

use crate::cluster::pod_requests::MAX_OBJECT;

/// The limit of the list without its items (kind, version, the token of the next page), in bytes.
const MAX_REST: usize = 64 << 10;

/// Splits a list (`{"kind": …, "metadata": …, "items": [ … ]}`) into its items and the rest. It does not validate JSON:
/// the parsers of the items and of the rest do.
#[derive(Debug, Default)]
pub(super) struct ListParser {
    item: Vec<u8>,
    rest: Vec<u8>,
    /// The last string at the list's own level; when an array begins, it is the name of the array's member.
    name: Vec<u8>,
    depth: usize,
    in_items: bool,
    text: Text,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    Escaped,
}

/// An item or the rest exceeds its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

impl ListParser {
    /// Parses the next bytes, and calls `found` with each item that they complete.
    pub(super) fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(&[u8])) -> Result<(), TooLong> {
        for byte in bytes {
            self.take(*byte)?;
            // An item is two levels deep, and is complete when its own bracket has closed.
            if self.in_items && self.depth == 2 && *byte == b'}' && self.text == Text::Outside {
                found(&self.item);
                self.item.clear();
            }
        }
        Ok(())
    }

    /// Returns the list without its items.
    pub(super) fn rest(self) -> Vec<u8> {
        self.rest
    }

    fn take(&mut self, byte: u8) -> Result<(), TooLong> {
        let outside = self.text == Text::Outside;
        self.read_text(byte);
        if outside && matches!(byte, b'[' | b'{') {
            self.in_items |= byte == b'[' && self.depth == 1 && self.name == b"items";
            self.depth = self.depth.saturating_add(1);
        } else if outside && matches!(byte, b']' | b'}') {
            self.depth = self.depth.saturating_sub(1);
            self.in_items &= self.depth > 1;
        }
        let between = self.depth == 2 && matches!(byte, b',' | b' ' | b'\t' | b'\r' | b'\n');
        match (self.in_items, self.depth) {
            // The bracket that opens the array belongs to the list.
            (true, 2) if byte == b'[' && self.item.is_empty() => push(&mut self.rest, byte, MAX_REST),
            (true, _) if between && self.item.is_empty() => Ok(()),
            (true, _) => push(&mut self.item, byte, MAX_OBJECT),
            (false, _) => push(&mut self.rest, byte, MAX_REST),
        }
    }

    fn read_text(&mut self, byte: u8) {
        self.text = match (self.text, byte) {
            (Text::Outside, b'"') => {
                self.name.clear();
                Text::Inside
            }
            (Text::Inside, b'\\') => Text::Escaped,
            (Text::Inside, b'"') | (Text::Outside, _) => Text::Outside,
            (Text::Inside | Text::Escaped, _) => {
                if self.depth == 1 && self.name.len() < 16 {
                    self.name.push(byte);
                }
                Text::Inside
            }
        };
    }
}

fn push(bytes: &mut Vec<u8>, byte: u8, most: usize) -> Result<(), TooLong> {
    if bytes.len() >= most {
        return Err(TooLong);
    }
    bytes.push(byte);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Returns the items and the rest, when the text arrives in pieces of this length.
    fn cut(text: &str, piece: usize) -> (Vec<Value>, Value) {
        let (mut items, mut found) = (ListParser::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece) {
            items.feed(bytes, |item| found.push(serde_json::from_slice(item).unwrap())).unwrap();
        }
        (found, serde_json::from_slice(&items.rest()).unwrap())
    }

    fn whole(list: &Value) -> (Vec<Value>, Value) {
        let mut rest = list.clone();
        let items = match rest.get_mut("items") {
            Some(Value::Array(items)) => std::mem::take(items),
            _ => Vec::new(),
        };
        (items, rest)
    }

    #[test]
    fn a_list_is_split_wherever_its_items_are() {
        for list in [
            json!({ "kind": "PodList", "metadata": { "continue": "x" }, "items": [] }),
            json!({ "items": [{ "a": 1 }, { "b": [{ "items": [{ "c": "]}" }] }] }], "z": 1 }),
            json!({ "a": "items", "b": [1, 2], "items": [{ "a": "\\\"}{[" }] }),
            json!({ "metadata": { "items": [{ "no": 1 }] }, "items": null }),
            json!({ "kind": "Status", "message": "not a list" }),
        ] {
            for text in [list.to_string(), format!("{list:#}")] {
                for piece in [1, 2, 7, 4096] {
                    assert_eq!(cut(&text, piece), whole(&list), "{text}");
                }
            }
        }
    }

    #[test]
    fn an_endless_item_or_rest_is_refused() {
        let endless = |start: &str, most: usize| {
            let mut items = ListParser::default();
            items.feed(start.as_bytes(), |_| unreachable!("no item is complete")).unwrap();
            (0..=most).any(|_| items.feed(b"x", |_| unreachable!("no item is complete")).is_err())
        };
        assert!(endless(r#"{"items": [{"a": ""#, MAX_OBJECT));
        assert!(endless(r#"{"metadata": ""#, MAX_REST));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<String>().prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"\\\\{]{0,6}|items", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_list_is_split_into_its_items_and_the_rest(
            other_members in prop::collection::btree_map("[a-z\"\\\\]{1,6}", value(), 0..3),
            items in prop::collection::vec(prop::collection::btree_map(".{0,3}", value(), 0..3), 0..4),
            piece in 1usize..40,
        ) {
            let mut list: Value = other_members.into_iter().collect();
            list["items"] = items.into_iter().map(|item| item.into_iter().collect::<Value>()).collect();
            prop_assert_eq!(cut(&list.to_string(), piece), whole(&list));
        }
    }
}
