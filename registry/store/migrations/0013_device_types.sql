-- A target is now a model for one type of device: a host and what is known of its device. Earlier
-- records do not say which type they were made for, so models are compiled again, in the background.
DELETE FROM builds;
DELETE FROM compiled;
