-- What both files of the compact log use.

local HEAD, SMALL, LARGE, ZERO = 43, 32, 10000000, '\0\0\0\0\0\0\0'
local byte, char, sub, format = string.byte, string.char, string.sub, string.format

