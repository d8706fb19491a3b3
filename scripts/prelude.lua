-- The part every script begins with: the clock.
--
-- KEYS     the keys of all limits of all items, in the order of ARGV
-- ARGV[1]  the caller's clock in microseconds, or 0: ask the server (TIME)
-- ARGV[2…] the items, see driver.lua; the sliding log has an id first
--
-- All numbers are integers below 2^53. They become text only by '%d': joining
-- or tostring() keeps 14 digits on a real Redis.
--
-- A run makes every function and table anew, and calls out of Lua: that is
-- most of its time. Hence few functions, and "+ 0" for tonumber where the text is
-- surely a number. Text with leading zeros needs tonumber(x, 10): miniredis' Lua
-- reads it as octal.

local call = redis.call

local now = ARGV[1] + 0
if now == 0 then
	local time = redis.pcall('TIME')
	if time.err then
		return redis.error_reply('NOTIME the server refuses TIME inside scripts: ' .. time.err)
	end
	now = time[1] * 1000000 + time[2]
end

-- How far the walk through the items has come: where the next one begins in ARGV
-- and KEYS, how many there were, and what is answered so far.
local at, key, index = 2, 1, 0
local reply, size = {0, 0, 0, 0}, 0

-- How many numbers ARGV has for a limit.
local fields = 3

-- If set it decides in the driver's place.
local choose
local answer = {0, 0}

-- The limits of the item before, and how many.
local limits, total
