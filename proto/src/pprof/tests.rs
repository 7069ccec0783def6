use super::*;
use proptest::prelude::*;
use prost::Message as _;

#[test]
fn equal_entries_share_an_id() {
    let mut builder = ProfileBuilder::new();
    let function = builder.function("main", "", "main.c");
    assert_eq!(builder.function("main", "", "main.c"), function);
    assert_ne!(builder.function("main", "", "other.c"), function);
    let location = builder.location(1, 16, vec![(function, 3)]);
    assert_eq!(builder.location(1, 16, vec![(function, 3)]), location);
    let profile = builder.finish();
    assert_eq!((profile.function.len(), profile.location.len()), (2, 1));
    assert_eq!(profile.string_table[0], b"");
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        rows in proptest::collection::vec((0_u64..5, any::<u64>(), ".{0,8}", any::<i64>()), 0..40),
    ) {
        let mut builder = ProfileBuilder::new();
        for (mapping, address, name, value) in &rows {
            let function = builder.function(name, "", "");
            let location = builder.location(*mapping, *address, vec![(function, 1)]);
            builder.sample(Sample { location_id: vec![location], value: vec![*value], label: vec![] });
        }
        let profile = builder.finish();
        let read = Profile::decode(profile.encode_to_vec().as_slice()).unwrap();
        prop_assert_eq!(&read, &profile);
        prop_assert_eq!(read.sample.len(), rows.len());
        for (sample, (mapping, address, name, value)) in read.sample.iter().zip(&rows) {
            let location = &read.location[usize::try_from(sample.location_id[0]).unwrap() - 1];
            let function = &read.function[usize::try_from(location.line[0].function_id).unwrap() - 1];
            let text = &read.string_table[usize::try_from(function.name).unwrap()];
            prop_assert_eq!((location.mapping_id, location.address), (*mapping, *address));
            prop_assert_eq!(text.as_slice(), name.as_bytes());
            prop_assert_eq!(sample.value[0], *value);
        }
    }
}
