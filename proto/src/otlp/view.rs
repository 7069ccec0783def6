//! Reads a dictionary that came from outside: every index is checked, nothing is trusted.

use super::common::{AnyValue, KeyValue, any_value};
use super::profiles::{
    Function, KeyValueAndUnit, Link, Location, Mapping, Profile, ProfilesDictionary, Stack,
};
use std::fmt;

/// A table of the dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `string_table`.
    String,
    /// `attribute_table`.
    Attribute,
    /// `mapping_table`.
    Mapping,
    /// `function_table`.
    Function,
    /// `location_table`.
    Location,
    /// `stack_table`.
    Stack,
    /// `link_table`.
    Link,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::String => "string_table",
            Self::Attribute => "attribute_table",
            Self::Mapping => "mapping_table",
            Self::Function => "function_table",
            Self::Location => "location_table",
            Self::Stack => "stack_table",
            Self::Link => "link_table",
        })
    }
}

/// Why a reference cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DictionaryError {
    /// The index is negative or behind the end of the table.
    #[error("index {index} is outside of {table} with {len} entries")]
    OutOfRange {
        /// Where it points.
        table: Table,
        /// The index.
        index: i32,
        /// Entries of the table.
        len: usize,
    },
    /// Entry 0 of a table is not the zero value, so "not set" cannot be told from it.
    #[error("entry 0 of {table} is not the zero value")]
    ZeroEntry {
        /// The table.
        table: Table,
    },
}

/// A borrowed dictionary. References are followed with bounds checks; index 0 is "not set", also where a
/// sender left the table empty.
#[derive(Clone, Copy, Debug)]
pub struct DictionaryView<'a> {
    tables: &'a ProfilesDictionary,
}

impl<'a> DictionaryView<'a> {
    /// Looks into a dictionary.
    #[must_use]
    pub const fn new(tables: &'a ProfilesDictionary) -> Self {
        Self { tables }
    }

    /// The string; empty for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn string(self, index: i32) -> Result<&'a str, DictionaryError> {
        let found = entry(Table::String, &self.tables.string_table, index)?;
        Ok(found.map_or("", String::as_str))
    }

    /// The attribute; `None` for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn attribute(self, index: i32) -> Result<Option<&'a KeyValueAndUnit>, DictionaryError> {
        entry(Table::Attribute, &self.tables.attribute_table, index)
    }

    /// The mapping; `None` for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn mapping(self, index: i32) -> Result<Option<&'a Mapping>, DictionaryError> {
        entry(Table::Mapping, &self.tables.mapping_table, index)
    }

    /// The function; `None` for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn function(self, index: i32) -> Result<Option<&'a Function>, DictionaryError> {
        entry(Table::Function, &self.tables.function_table, index)
    }

    /// The location; `None` for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn location(self, index: i32) -> Result<Option<&'a Location>, DictionaryError> {
        entry(Table::Location, &self.tables.location_table, index)
    }

    /// The stack; `None` for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn stack(self, index: i32) -> Result<Option<&'a Stack>, DictionaryError> {
        entry(Table::Stack, &self.tables.stack_table, index)
    }

    /// The link; `None` for 0.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn link(self, index: i32) -> Result<Option<&'a Link>, DictionaryError> {
        entry(Table::Link, &self.tables.link_table, index)
    }

    /// The key of a resource's or scope's attribute: in place, or by reference (1.10).
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn key(self, attribute: &'a KeyValue) -> Result<&'a str, DictionaryError> {
        if attribute.key_strindex == 0 {
            return Ok(&attribute.key);
        }
        self.string(attribute.key_strindex)
    }

    /// The text of a value: in place, or by reference (1.10); `None` if it is not text.
    ///
    /// # Errors
    /// [`DictionaryError::OutOfRange`].
    pub fn text(self, value: &'a AnyValue) -> Result<Option<&'a str>, DictionaryError> {
        match &value.value {
            Some(any_value::Value::StringValue(text)) => Ok(Some(text)),
            Some(any_value::Value::StringValueStrindex(index)) => self.string(*index).map(Some),
            _ => Ok(None),
        }
    }

    /// Checks every reference within the dictionary and that every entry 0 is the zero value. After
    /// that, following a reference of the dictionary cannot fail.
    ///
    /// # Errors
    /// The first defect found.
    pub fn check(self) -> Result<(), DictionaryError> {
        self.check_zero_entries()?;
        let attributes =
            |indices: &[i32]| indices.iter().try_for_each(|&index| self.attribute(index).map(drop));
        for mapping in &self.tables.mapping_table {
            self.string(mapping.filename_strindex)?;
            attributes(&mapping.attribute_indices)?;
        }
        for function in &self.tables.function_table {
            self.string(function.name_strindex)?;
            self.string(function.system_name_strindex)?;
            self.string(function.filename_strindex)?;
        }
        for location in &self.tables.location_table {
            self.mapping(location.mapping_index)?;
            location
                .lines
                .iter()
                .try_for_each(|line| self.function(line.function_index).map(drop))?;
            attributes(&location.attribute_indices)?;
        }
        for stack in &self.tables.stack_table {
            let mut locations = stack.location_indices.iter();
            locations.try_for_each(|&index| self.location(index).map(drop))?;
        }
        for attribute in &self.tables.attribute_table {
            self.string(attribute.key_strindex)?;
            self.string(attribute.unit_strindex)?;
            if let Some(value) = &attribute.value {
                self.text(value)?;
            }
        }
        Ok(())
    }

    /// Checks every reference of a profile into the dictionary.
    ///
    /// # Errors
    /// The first defect found.
    pub fn check_profile(self, profile: &Profile) -> Result<(), DictionaryError> {
        for value_type in profile.sample_type.iter().chain(&profile.period_type) {
            self.string(value_type.type_strindex)?;
            self.string(value_type.unit_strindex)?;
        }
        profile.attribute_indices.iter().try_for_each(|&index| self.attribute(index).map(drop))?;
        for sample in &profile.samples {
            self.stack(sample.stack_index)?;
            self.link(sample.link_index)?;
            sample
                .attribute_indices
                .iter()
                .try_for_each(|&index| self.attribute(index).map(drop))?;
        }
        Ok(())
    }

    fn check_zero_entries(self) -> Result<(), DictionaryError> {
        let tables = self.tables;
        zero(Table::String, &tables.string_table)?;
        zero(Table::Attribute, &tables.attribute_table)?;
        zero(Table::Mapping, &tables.mapping_table)?;
        zero(Table::Function, &tables.function_table)?;
        zero(Table::Location, &tables.location_table)?;
        zero(Table::Stack, &tables.stack_table)?;
        // Senders also write the zero link with ids of zero bytes.
        let set = |link: &Link| link.trace_id.iter().chain(&link.span_id).any(|&byte| byte != 0);
        match tables.link_table.first() {
            Some(link) if set(link) => Err(DictionaryError::ZeroEntry { table: Table::Link }),
            _ => Ok(()),
        }
    }
}

fn entry<T>(table: Table, entries: &[T], index: i32) -> Result<Option<&T>, DictionaryError> {
    if index == 0 {
        return Ok(None);
    }
    let found = usize::try_from(index).ok().and_then(|at| entries.get(at));
    found.map(Some).ok_or(DictionaryError::OutOfRange { table, index, len: entries.len() })
}

fn zero<T: Default + PartialEq>(table: Table, entries: &[T]) -> Result<(), DictionaryError> {
    match entries.first() {
        Some(first) if *first != T::default() => Err(DictionaryError::ZeroEntry { table }),
        _ => Ok(()),
    }
}
