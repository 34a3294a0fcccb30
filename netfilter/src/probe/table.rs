//! A small map in insertion order. A map of the standard library would add much more code to the plugin.

/// A map with few keys, in insertion order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V>(Vec<(K, V)>);

impl<K: Copy + PartialEq, V> Table<K, V> {
    /// The value of `key`.
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Reports whether `key` has a value.
    pub fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of `key`.
    pub fn insert(&mut self, key: K, value: V) {
        match self.0.iter_mut().find(|(other, _)| *other == key) {
            Some((_, there)) => *there = value,
            None => self.0.push((key, value)),
        }
    }

    /// Keeps the values of which `is_kept` is true.
    pub fn retain(&mut self, is_kept: impl Fn(&V) -> bool) {
        self.0.retain(|(_, value)| is_kept(value));
    }

    /// The entries in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// The values in insertion order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Reports whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq, V> FromIterator<(K, V)> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut table = Self::default();
        all.into_iter().for_each(|(key, value)| table.insert(key, value));
        table
    }
}
