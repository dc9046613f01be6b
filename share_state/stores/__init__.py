"""Files and folders, local or in an object store: `paths` for all, `object_stores` for addresses like s3://bucket."""
