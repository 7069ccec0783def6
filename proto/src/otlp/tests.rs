use super::common::{AnyValue, KeyValue, any_value};
use super::profiles::{Location, Mapping, ProfilesDictionary, Stack};
use super::*;
use proptest::prelude::*;
use prost::Message as _;

#[test]
fn entry_zero_is_the_zero_value_in_every_table() {
    let mut builder = DictionaryBuilder::new();
    assert_eq!(builder.string(""), 0);
    assert_eq!(builder.mapping(Mapping::default()), 0);
    assert_eq!(builder.function("", "", "", 0), 0);
    assert_eq!(builder.stack(&[]), 0);
    assert_eq!(builder.string("a"), 1);
    let tables = builder.finish();
    DictionaryView::new(&tables).check().unwrap();
    assert_eq!(tables.link_table.len(), 1);
    assert_eq!(tables.location_table, [Location::default()]);
}

#[test]
fn equal_entries_share_an_index() {
    let mut builder = DictionaryBuilder::new();
    let text = builder.attribute("k", &AttributeValue::Text("1"));
    let number = builder.attribute("k", &AttributeValue::Int(1));
    assert_ne!(text, number);
    assert_eq!(builder.attribute("k", &AttributeValue::Int(1)), number);
    let location = builder.location(0, 7, &[], &[text]);
    assert_ne!(builder.location(0, 7, &[], &[number]), location);
    assert_eq!(builder.stack(&[location]), builder.stack(&[location]));
}

#[test]
fn references_out_of_range_are_refused() {
    let defects = [
        ProfilesDictionary {
            stack_table: vec![Stack::default(), Stack { location_indices: vec![9] }],
            ..ProfilesDictionary::default()
        },
        ProfilesDictionary {
            location_table: vec![
                Location::default(),
                Location { mapping_index: -1, ..Location::default() },
            ],
            ..ProfilesDictionary::default()
        },
        ProfilesDictionary {
            mapping_table: vec![Mapping { filename_strindex: 1, ..Mapping::default() }],
            ..ProfilesDictionary::default()
        },
        ProfilesDictionary {
            string_table: vec!["not empty".into()],
            ..ProfilesDictionary::default()
        },
    ];
    for defect in defects {
        assert!(DictionaryView::new(&defect).check().is_err(), "{defect:?}");
    }
}

#[test]
fn an_empty_table_answers_not_set() {
    let tables = ProfilesDictionary::default();
    let view = DictionaryView::new(&tables);
    assert_eq!(view.string(0), Ok(""));
    assert_eq!(view.stack(0), Ok(None));
    let error = DictionaryError::OutOfRange { table: Table::Stack, index: 1, len: 0 };
    assert_eq!(view.stack(1), Err(error));
}

#[test]
fn strings_of_resources_may_be_references() {
    let mut builder = DictionaryBuilder::new();
    let (key, value) = (builder.string("host.name"), builder.string("a"));
    let tables = builder.finish();
    let view = DictionaryView::new(&tables);
    let value = AnyValue { value: Some(any_value::Value::StringValueStrindex(value)) };
    let attribute = KeyValue { key: String::new(), value: Some(value), key_strindex: key };
    assert_eq!(view.key(&attribute), Ok("host.name"));
    assert_eq!(view.text(attribute.value.as_ref().unwrap()), Ok(Some("a")));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        rows in proptest::collection::vec((".{0,6}", 0_u64..9, 0_i64..9, ".{0,3}"), 0..60),
    ) {
        let mut builder = DictionaryBuilder::new();
        let mut stacks = Vec::new();
        for (name, address, line, value) in &rows {
            let attribute = builder.attribute("a", &AttributeValue::Text(value));
            let function = builder.function(name, "", "f", 0);
            let location = builder.location(0, *address, &[(function, *line)], &[attribute]);
            stacks.push(builder.stack(&[location]));
        }
        let bound = builder.encoded_bytes_max();
        let tables = builder.finish();
        prop_assert!(tables.encoded_len() <= bound);
        let read = ProfilesDictionary::decode(tables.encode_to_vec().as_slice()).unwrap();
        let view = DictionaryView::new(&read);
        view.check().unwrap();
        for (stack, (name, address, line, value)) in stacks.iter().zip(&rows) {
            let stack = view.stack(*stack).unwrap().unwrap();
            let location = view.location(stack.location_indices[0]).unwrap().unwrap();
            let function = view.function(location.lines[0].function_index).unwrap().unwrap();
            let attribute = view.attribute(location.attribute_indices[0]).unwrap().unwrap();
            prop_assert_eq!(view.string(function.name_strindex).unwrap(), name);
            prop_assert_eq!((location.address, location.lines[0].line), (*address, *line));
            let text = view.text(attribute.value.as_ref().unwrap()).unwrap();
            prop_assert_eq!(text, Some(value.as_str()));
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(tables) = ProfilesDictionary::decode(bytes.as_slice()) {
            let sound = DictionaryView::new(&tables).check().is_ok();
            let negative = tables.stack_table.iter().flat_map(|stack| &stack.location_indices);
            prop_assert!(!sound || negative.into_iter().all(|&index| index >= 0));
        }
    }
}
