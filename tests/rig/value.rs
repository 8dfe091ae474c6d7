//! Reading a reply.

use redis::Value;
use std::collections::BTreeMap;

/// What tests ask of a reply. Each method panics with the whole reply when it is of another kind.
pub trait ValueExt {
    /// The integer it is.
    fn int(&self) -> i64;
    /// The integers of an array, such as the five of a rate limit.
    fn ints(&self) -> Vec<i64>;
    /// The text of a string, a status or an error; bytes that are no UTF-8 are replaced.
    fn text(&self) -> String;
    /// The bytes of a string or status.
    fn bytes(&self) -> Vec<u8>;
    /// The elements of an array, set or push, a map as key, value, key, value.
    fn array(&self) -> Vec<Value>;
    /// A map, or a flat array of keys and values as RESP2 has it.
    fn map(&self) -> BTreeMap<String, Value>;
    /// The line of an error, `None` for anything else.
    fn error(&self) -> Option<String>;
    /// Whether it is an error that begins with `prefix`.
    fn is_error(&self, prefix: &str) -> bool;
    /// Whether it is nil.
    fn is_nil(&self) -> bool;
}

impl ValueExt for Value {
    #[track_caller]
    fn int(&self) -> i64 {
        let Value::Int(n) = self else { panic!("not an integer: {self:?}") };
        *n
    }

    #[track_caller]
    fn ints(&self) -> Vec<i64> {
        self.array().iter().map(ValueExt::int).collect()
    }

    #[track_caller]
    fn text(&self) -> String {
        match self {
            Value::ServerError(_) => self.error().unwrap_or_default(),
            Value::VerbatimString { text, .. } => text.clone(),
            _ => String::from_utf8_lossy(&self.bytes()).into_owned(),
        }
    }

    #[track_caller]
    fn bytes(&self) -> Vec<u8> {
        match self {
            Value::BulkString(bytes) => bytes.clone(),
            Value::SimpleString(text) => text.clone().into_bytes(),
            Value::Okay => b"OK".to_vec(),
            _ => panic!("not a string: {self:?}"),
        }
    }

    #[track_caller]
    fn array(&self) -> Vec<Value> {
        match self {
            Value::Array(items) | Value::Set(items) => items.clone(),
            Value::Push { data, .. } => data.clone(),
            Value::Map(pairs) => pairs.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect(),
            _ => panic!("not an array: {self:?}"),
        }
    }

    #[track_caller]
    fn map(&self) -> BTreeMap<String, Value> {
        let flat = self.array();
        assert!(flat.len().is_multiple_of(2), "a key without a value: {self:?}");
        flat.chunks(2).map(|pair| (pair[0].text(), pair[1].clone())).collect()
    }

    fn error(&self) -> Option<String> {
        let Value::ServerError(error) = self else {
            return None;
        };
        Some(match error.details() {
            Some(rest) => format!("{} {rest}", error.code()),
            None => error.code().to_owned(),
        })
    }

    fn is_error(&self, prefix: &str) -> bool {
        self.error().is_some_and(|line| line.starts_with(prefix))
    }

    fn is_nil(&self) -> bool {
        matches!(self, Value::Nil)
    }
}
